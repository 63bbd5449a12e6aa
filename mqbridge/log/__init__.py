"""The embedded log: topics, partitions, positions and groups in one SQLite file, a system like the others."""
