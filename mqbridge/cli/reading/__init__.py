"""Readers of a topic: by ranges of positions without a group, or as a member of a group."""
