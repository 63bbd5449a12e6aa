"""What the gateway sees of the embedded log."""
