"""Moves the batches of one Spark task into the targets of a route, each message once: shared by the sink and the pump."""
