"""Runs the routes of a configuration as streaming queries of Spark: first existing messages, then new ones."""
