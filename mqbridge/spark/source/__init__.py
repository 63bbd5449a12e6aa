"""Reading: topics, offsets and ranges, in batches and as streams."""
