"""The adapter of the embedded log."""
