"""How long tests wait for what is to happen: named here, so that a machine that is slow for a day is met in one place.

Nobody waits so long for what does happen: these only end a test that would never end. A test that means to show how long
something takes has a clock of its own, which it moves.
"""

PATIENCE_S = 25.0
"""For what happens within this process: less than closing may take (30 s), so that a wait which only that ends is seen."""

SERVER_PATIENCE_S = 240.0
"""For real servers, their clients, and processes that are started."""
