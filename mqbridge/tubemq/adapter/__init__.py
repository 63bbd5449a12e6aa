"""What the gateway sees of TubeMQ."""
