"""The pages of the clients: tests that their matrices name exist, and so do the programs beside them."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGES = sorted((TESTS.parent / "docs" / "clients").glob("*.md"))
SHARED = ("sdk", "conformance", "fuzz")
"""Folders of tests that are about more than one system; a page writes them in front."""
FEW = 30


def known(system: str) -> set[str]:
    """Names of tests and files, as the page of a system may write them."""
    files = {path: str(path.relative_to(TESTS / system)) for path in (TESTS / system).rglob("test_*.py")}
    files |= {path: str(path.relative_to(TESTS)) for folder in SHARED for path in (TESTS / folder).rglob("test_*.py")}
    functions = {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    return {*files.values(), *functions}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    rows = "\n".join(line for line in page.read_text().splitlines() if line.startswith("|"))
    named = set(re.findall(r"`((?:\w+/)*test_\w+(?:\.py)?)`", rows))
    assert len(named) > FEW
    assert named - known(page.stem) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_way_to_its_examples(page: Path) -> None:
    assert f"](../../examples/{page.stem})" in page.read_text()
    assert list((TESTS.parent / "examples" / page.stem).glob("*.py"))


def test_every_system_with_examples_has_a_page() -> None:
    assert {path.name for path in (TESTS.parent / "examples").iterdir() if any(path.glob("*.py"))} == {
        page.stem for page in PAGES
    }
