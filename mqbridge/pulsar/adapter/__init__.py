"""What the gateway sees of Pulsar."""
