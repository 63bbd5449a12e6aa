"""What the mappings of all systems share: field tables, reserved properties, one cache."""
