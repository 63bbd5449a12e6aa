"""Every link of the documentation leads somewhere, down to the heading, and every page can be reached from the README."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, links, name_of, pages

UNLINKED = {"CHANGELOG.md", "native/README.md", ".github/pull_request_template.md"}
"""Pages that need no link, because readers find them by their names, or see them in a new pull request."""


def resolve(page: Path, link: str) -> tuple[Path, str]:
    """Return the file and the anchor that a link names."""
    target, _, anchor = link.partition("#")
    return (page.parent / target).resolve() if target else page, anchor


def is_outside(link: str) -> bool:
    return link.startswith(("http://", "https://", "mailto:"))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_to_files_of_the_project(page: Path) -> None:
    for link in links(page):
        if not is_outside(link):
            path, _ = resolve(page, link)
            assert path.exists(), f"{name_of(page)} links to {link}, which does not exist"
            assert path.is_relative_to(ROOT), f"{name_of(page)} links to {link}, outside the project"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_with_an_anchor_lead_to_a_heading(page: Path) -> None:
    for link in links(page):
        path, anchor = resolve(page, link) if not is_outside(link) else (page, "")
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name_of(page)} links to {link}; {name_of(path)} has {sorted(anchors(path))}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            waiting += [resolve(page, link)[0] for link in links(page) if not is_outside(link)]
    assert {name_of(page) for page in set(pages()) - reached} - UNLINKED == set()
