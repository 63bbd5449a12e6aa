"""What the mappings of all systems share: field tables, reserved properties, lazy properties, parse templates, one cache."""
