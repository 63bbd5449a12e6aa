"""Delivers the batches of each source partition, and acknowledges a message only after all targets have stored it."""
