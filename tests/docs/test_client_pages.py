"""The pages of the clients: the tests and the example programs that they name exist."""

from pathlib import Path

import pytest

from tests.kit.documented import NAMED, PAGES, TESTS, checked_words, known

MIN_TESTS = 30


def names_of_tests(page: Path) -> list[tuple[str, str]]:
    """Return the tests that a page's rows name, with the remark after each."""
    rows = "\n".join(line for line in page.read_text().splitlines() if line.startswith("|"))
    return NAMED.findall(rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    names = {name for name, _ in names_of_tests(page)}
    assert len(names) > MIN_TESTS
    assert names - known(page.stem).keys() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_remarks_of_a_page_match_the_markers_of_tests(page: Path) -> None:
    """ "real" means marked `cluster` or `sdk`; a test without the remark thorough or long runs in `make test`."""
    tests = known(page.stem)
    wrong = {name: (remark, tests[name]) for name, remark in names_of_tests(page) if checked_words(remark) not in tests[name]}
    assert wrong == {}, "run python -m tests.kit.documented"
    assert "real: `" not in page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_the_commands_that_run_its_tests(page: Path) -> None:
    text = " ".join(page.read_text().split())
    assert all(command in text for command in ("`make test`", "`make test-thorough`")), "which command runs them"


def test_remarks_are_parsed_and_only_known_words_are_checked() -> None:
    assert NAMED.findall("| a | `test_x` (real, thorough, 4.9.7), `client/test_y.py`, `test_z` (452) |") == [
        ("test_x", "real, thorough, 4.9.7"),
        ("client/test_y.py", ""),
        ("test_z", "452"),
    ]
    assert (checked_words("real, thorough, 4.9.7"), checked_words("452")) == ({"real", "thorough"}, set())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_links_to_its_examples(page: Path) -> None:
    assert f"](../../examples/{page.stem})" in page.read_text()
    assert list((TESTS.parent / "examples" / page.stem).glob("*.py"))


def test_every_system_with_examples_has_a_page() -> None:
    shown = {path.name for path in (TESTS.parent / "examples").iterdir() if any(path.glob("*.py"))}
    assert shown - {"spark"} == {page.stem for page in PAGES}  # Spark is no system, and has pages of its own
