"""Runs the routes of a configuration: starts, restarts, reloads and stops them, and reports their state."""
