"""The adapter of RocketMQ."""
