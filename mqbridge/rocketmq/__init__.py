"""Apache RocketMQ."""
