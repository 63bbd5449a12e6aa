"""Apache InLong TubeMQ."""
