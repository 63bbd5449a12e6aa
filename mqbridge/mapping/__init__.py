"""Shared by the mappings of all systems: field tables, reserved properties, one cache."""
