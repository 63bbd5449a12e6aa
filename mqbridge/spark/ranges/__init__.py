"""The pump: only ranges travel through Spark, and its tasks move the messages with the gateway's own clients."""
