"""The embedded log: a source and target like the others, with topics, partitions, positions and groups in one SQLite file."""
