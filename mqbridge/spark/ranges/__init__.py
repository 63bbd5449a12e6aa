"""The pump: Spark's rows contain only ranges, and its tasks move the messages with the gateway's own clients."""
