"""Timeouts of tests for expected events: in one place, so that they can be changed for a slow machine.

Nobody waits so long for what does happen: these only end a test that would never end. A test that means to show how long
something takes has a clock of its own, which it moves.
"""

PATIENCE_S = 25.0
"""For events within this process: less than the time for closing (30 s), so that a wait that only closing ends is noticed."""

SERVER_PATIENCE_S = 240.0
"""For real servers, their clients, and started processes."""
