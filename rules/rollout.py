"""Rolling updates, as Kthena's webhook allows them."""
