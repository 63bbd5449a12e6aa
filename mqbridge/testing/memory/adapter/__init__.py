"""The adapter of the memory system, a broker inside the process."""
