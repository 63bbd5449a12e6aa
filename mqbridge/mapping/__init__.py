"""The common part of the mappings of all systems: field tables, reserved properties and a cache."""
