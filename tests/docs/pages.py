"""The documentation as data: every page, its headings, links and fenced blocks."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)|<img[^>]* src=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language and its text without indentation."""

    page: Path
    language: str
    text: str


@cache
def pages() -> list[Path]:
    """Return every Markdown file of the project, without those that Git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [ROOT / name for name in listed.stdout.split()]
    return sorted(path for path in found if path.exists())


def name_of(page: Path) -> str:
    """Return the page's path relative to the project."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the fenced blocks of a page in these languages, in their order."""
    return [
        Block(page, language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, text in FENCE.findall(page.read_text())
        if language in languages
    ]


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks and without code between backticks."""
    return re.sub(r"`[^`\n]*`", "``", FENCE.sub("", page.read_text()))


def links(page: Path) -> Iterator[str]:
    """Yield the targets of all links and pictures of a page."""
    # Code between backticks is kept here: it is often the text of a link.
    for target, picture in LINK.findall(FENCE.sub("", page.read_text())):
        yield target or picture


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them; repeated ones get a number."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = sum(each == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", each) is not None for each in found)
        found.append(f"{anchor}-{count}" if count else anchor)
    return frozenset(found)
