"""The command line `pd`: what the other rooms know, without a cluster and without Pulumi."""
