"""Pulsar's binary protocol: bytes <-> commands and entries; no socket, no clock."""
