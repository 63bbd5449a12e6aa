"""Shows the positions and the lag of consumer groups, and moves groups to other positions."""
