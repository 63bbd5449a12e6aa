"""The Spark source: topics, offsets and ranges, in batch reads and streams."""
