"""Which topic and partition a message goes to, and which messages go at all."""
