"""Formats and prints the output of the commands."""
