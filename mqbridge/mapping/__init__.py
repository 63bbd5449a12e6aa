"""What the mappings of all systems share: field tables, reserved properties, property names, parse templates, one cache."""
