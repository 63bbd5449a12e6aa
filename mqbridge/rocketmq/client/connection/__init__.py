"""Connections to name servers and brokers, credentials, routes and heartbeats."""
