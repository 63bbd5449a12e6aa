"""Mapping between messages and Pulsar entries: field table, properties, encoding and decoding."""
