"""Converts batches of messages to Arrow record batches for Spark, and back."""
