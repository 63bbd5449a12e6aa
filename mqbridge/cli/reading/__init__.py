"""Reading messages by position range, or as a member of a group."""
