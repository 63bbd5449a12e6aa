"""The adapter of Pulsar."""
