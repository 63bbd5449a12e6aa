"""What the gateway sees of the memory system."""
