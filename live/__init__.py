"""The user's cluster, beside Pulumi: what is there right now. The only room that talks to it."""
