"""Connections to Masters and Brokers, and calls to the active Master."""
