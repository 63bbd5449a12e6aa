"""Encoding of messages as rows of the file; no I/O, no clock."""
