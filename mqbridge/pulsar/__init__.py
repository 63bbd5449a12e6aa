"""Apache Pulsar."""
