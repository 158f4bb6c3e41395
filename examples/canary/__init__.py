"""Two deployments of one model, of which the second gets a small share of the requests."""
