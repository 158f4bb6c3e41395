"""The local cluster: build its programs once, start, stop, look inside."""
