"""Pulsar's binary protocol: bytes <-> commands and entries, without sockets or clocks."""
