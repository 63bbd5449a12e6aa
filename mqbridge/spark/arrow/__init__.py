"""Between batches of messages and Arrow: rows for Spark, and rows from it."""
