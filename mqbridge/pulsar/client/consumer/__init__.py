"""Consumers of entries of one concrete topic, and their acknowledgements."""
