"""The feature matrix names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
DOCUMENT = TESTS.parents[1] / "docs" / "clients" / "pulsar.md"


def test_every_test_that_the_matrix_names_exists():
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    named = set(re.findall(r"`((?:\w+/)?test_\w+(?:\.py)?)`", "\n".join(rows)))
    files = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    functions = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    assert len(named) > 50
    assert named - functions - files == set()
