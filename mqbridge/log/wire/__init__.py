"""Messages as the bytes of a stored row; no file, no clock."""
