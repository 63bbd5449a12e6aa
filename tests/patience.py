"""Timeouts of tests for expected events: in one place, so that they can be changed for a slow machine.

An expected event ends the wait at once, so these only end a test that would never end. A test of durations has a virtual
clock of its own.
"""

PATIENCE_S = 25.0
"""For events within this process: less than the time for closing (30 s), so that a wait that only closing ends is noticed."""

SERVER_PATIENCE_S = 240.0
"""For real servers, their clients, and started processes."""
