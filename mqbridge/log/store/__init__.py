"""The log's store: topics, batches, groups and retention in SQLite."""
