"""Stores the batches of one Spark task in the targets of a route, each message once. Shared by the sink and the pump."""
