"""What Kthena's autoscaler may do."""
