"""Volcano: gang scheduling, topology, queues; the controller's plugins."""
