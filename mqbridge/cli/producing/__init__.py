"""From input bytes to stored messages."""
