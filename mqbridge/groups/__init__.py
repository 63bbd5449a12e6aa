"""What consumer groups have acknowledged behind a prefix, kept durably for listeners."""
