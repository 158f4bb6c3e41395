"""Times that must fit each other."""
