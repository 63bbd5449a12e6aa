"""The HTTP administration API of the Masters."""
