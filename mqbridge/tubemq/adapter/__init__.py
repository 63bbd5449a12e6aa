"""The adapter of TubeMQ."""
