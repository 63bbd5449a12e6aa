"""Writes docs/reference/listeners.md from the support tables of the servers, so that the page and the program agree.

python -m tools.listeners_page --check     exits 1 when the file is not current
python -m tools.listeners_page --write
"""

import sys
from collections.abc import Iterator, Sequence

from mqbridge.listener.support import Backing, Support, SupportRow
from mqbridge.pulsar.server.support import BACKINGS, TABLE
from tools.generated_page import DOCS, check_or_write

PAGE = DOCS / "reference" / "listeners.md"

_BEGINNING = """\
# What a listener supports

<!-- Written by `python -m tools.listeners_page --write` from the code. Do not edit. -->

What an unmodified SDK can do at a listener, compared with a real server of its system. [What listeners
promise](../explanation/listeners.md) has a page of its own, and [Keep your Pulsar SDK](../how-to/keep-your-pulsar-sdk.md)
shows how to begin.

- **native**: as a real server does it
- **parked**: what waits is stored in topics of the listener meanwhile
- **differs**: it works, and differs in a way that the backing forces
- **refused**: the client gets an error

A backing is a system and the mode of groups (`groups: own` or `groups: backing`).
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_BEGINNING, *_section("Pulsar SDKs", BACKINGS, TABLE)]) + "\n"


def _section(title: str, backings: Sequence[Backing], rows: Sequence[SupportRow]) -> Iterator[str]:
    """Yield the lines of one server: the table, and its notes."""
    yield f"## {title}"
    yield ""
    yield "| feature | " + " | ".join(f"{backing.system}, {backing.groups}" for backing in backings) + " |"
    yield "|---" * (len(backings) + 1) + "|"
    notes: list[str] = []
    for row in rows:
        cells = []
        for backing in backings:
            cell = row.cell(backing)
            text = f"{cell.text} (`{cell.code}`)" if cell.code else cell.text
            if cell.support is Support.NATIVE:
                cells.append(cell.support.value)
                continue
            if text not in notes:
                notes.append(text)
            cells.append(f"{cell.support.value} ({notes.index(text) + 1})")
        yield f"| {row.feature} | " + " | ".join(cells) + " |"
    yield ""
    for number, note in enumerate(notes, 1):
        yield f"{number}. {note}"


if __name__ == "__main__":
    sys.exit(check_or_write("tools.listeners_page", PAGE, page()))
