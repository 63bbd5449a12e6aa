"""The HTTP administration API."""
