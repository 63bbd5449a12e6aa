"""What the gateway sees of RocketMQ."""
