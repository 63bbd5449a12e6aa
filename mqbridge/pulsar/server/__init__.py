"""The server for Pulsar clients."""
