"""What the pod template patch may not say."""
