"""How the memory system stores the fields of a message: the field table and the preview."""
