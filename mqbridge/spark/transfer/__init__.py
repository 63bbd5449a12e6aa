"""Stores the batches of one Spark task in the targets of a route, each message once. The sink and the pump use it."""
