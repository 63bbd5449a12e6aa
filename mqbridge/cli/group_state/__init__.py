"""Positions and lag of consumer groups."""
