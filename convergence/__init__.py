"""Whether a deployment has become what is declared, is on its way, or is stuck, and why. Pure, but for the loop that waits."""
