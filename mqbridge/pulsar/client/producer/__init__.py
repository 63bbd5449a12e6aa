"""Producers of entries of one concrete topic."""
