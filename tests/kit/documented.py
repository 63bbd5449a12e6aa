"""Checks the remarks behind test names in the client pages: whether a test needs real servers, and which command runs it.

python -m tests.kit.documented      correct the remarks in docs/clients
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGES = sorted((TESTS.parent / "docs" / "clients").glob("*.md"))
SHARED = ("sdk", "conformance", "fuzz")
"""Folders with tests of several systems. Pages name their files with the folder, like `sdk/test_x.py`."""
REAL = {"cluster", "sdk"}
"""Markers of tests that need real servers."""
NAMED = re.compile(r"`((?:\w+/)*test_\w+(?:\.py)?)`(?: \(([^)]*)\))?")
"""A test or a test file in a page, and the remark behind it."""
HEADED = re.compile(r"([|,;]) (?:real|scripted): `")
"""A word in front of several names, which belongs behind each name."""
WORDS = {"real", "partly real", "thorough", "partly thorough", "long", "partly long"}
"""Words of remarks that are checked against the markers of the test; other words are free text."""


def _markers(node: ast.AST, named: dict[str, set[str]]) -> set[str]:
    """Return the names of `pytest.mark.NAME` in an expression; those of single parameters of a test begin with "partly ".

    `named` are variables of the file that contain markers.
    """
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Name):
        return named.get(node.id, set())
    found = set[str]().union(*(_markers(child, named) for child in ast.iter_child_nodes(node)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize":
        return {marker if marker.startswith("partly ") else f"partly {marker}" for marker in found}
    return found


def tests_of(path: Path) -> dict[str, set[str]]:
    """Return the markers of each test in a file."""
    found: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named[node.targets[0].id] = _markers(node.value, named)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            found[node.name] = set[str]().union(*(_markers(each, named) for each in node.decorator_list))
    everywhere = named.get("pytestmark", set())
    if path.parent.name == "conformance":  # the parameters of these tests have the markers
        everywhere = everywhere | {"cluster"}
    return {name: markers | everywhere for name, markers in found.items()}


def _words(tests: list[set[str]]) -> frozenset[str]:
    """Return the words that describe these tests together."""
    words = set()
    for word, marked in (("real", REAL), ("thorough", {"thorough"}), ("long", {"long"})):
        partly = {f"partly {marker}" for marker in marked}
        if tests and all(markers & marked for markers in tests):
            words.add(word)
        elif any(markers & (marked | partly) for markers in tests):
            words.add(f"partly {word}")
    return frozenset(words)


def known(system: str) -> dict[str, set[frozenset[str]]]:
    """Return the correct words by name of a test or file, as a system's page writes it; a repeated name has several options."""
    files = {path: str(path.relative_to(TESTS / system)) for path in (TESTS / system).rglob("test_*.py")}
    files |= {path: str(path.relative_to(TESTS)) for folder in SHARED for path in (TESTS / folder).rglob("test_*.py")}
    found: dict[str, set[frozenset[str]]] = {}
    for path, name in files.items():
        tests = tests_of(path)
        found.setdefault(name, set()).add(_words(list(tests.values())))
        for test, markers in tests.items():
            found.setdefault(test, set()).add(_words([markers]))
    return found


def checked_words(remark: str | None) -> frozenset[str]:
    """Return the words of a remark that are checked."""
    return frozenset(WORDS & {word.strip() for word in (remark or "").split(",")})


def corrected(line: str, tests: dict[str, set[frozenset[str]]]) -> str:
    """Return the row of a table with the correct words behind each test; other words of a remark stay."""

    def correct(found: re.Match[str]) -> str:
        name, remark = found[1], found[2]
        options = tests.get(name, {checked_words(remark)})
        if checked_words(remark) in options:
            return found[0]
        true = min(options, key=lambda option: len(option ^ checked_words(remark)))
        others = [word for part in (remark or "").split(",") if (word := part.strip()) and word not in WORDS]
        words = ", ".join([*sorted(true, key=lambda word: word.removeprefix("partly ") != "real"), *others])
        return f"`{name}` ({words})" if words else f"`{name}`"

    if not line.startswith("|"):
        return line
    return NAMED.sub(correct, HEADED.sub(lambda found: f"{found[1].replace(';', ',')} `", line))


if __name__ == "__main__":
    for page in PAGES:
        page.write_text("".join(corrected(line, known(page.stem)) for line in page.read_text().splitlines(keepends=True)))
