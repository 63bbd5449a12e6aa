"""How many examples a property test runs: a tenth of its full number in `make test`, all of them in `make test-thorough`."""

from hypothesis import settings

FULL = 100
"""`max_examples` of the profile that runs all examples."""


def examples(full_number: int) -> int:
    """Return the number of examples that a test with this full number runs, at least 5. The profiles are in `conftest.py`."""
    return max(5, full_number * settings().max_examples // FULL)
