"""The steps of `mqbridge produce`: read input records, build messages from them, and send them."""
