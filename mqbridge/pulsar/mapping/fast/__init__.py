"""The fast code for batches."""
