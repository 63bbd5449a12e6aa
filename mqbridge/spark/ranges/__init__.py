"""The pump of a mirror: the rows in Spark contain only ranges, and tasks move the messages with the gateway's own clients."""
