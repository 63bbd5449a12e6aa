"""The part of the data source that writes: rows into topics, effectively once."""
