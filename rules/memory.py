"""Whether weights and buffers fit the memory of the dies."""
