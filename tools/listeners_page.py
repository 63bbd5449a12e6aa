"""Writes docs/reference/listeners.md from the support tables of the servers, so that the page and the program agree.

python -m tools.listeners_page --check     exits 1 when the file is not current
python -m tools.listeners_page --write
"""

import sys
from collections.abc import Iterator, Sequence

from mqbridge.listener.support import Backing, Support, SupportRow
from mqbridge.pulsar.server import support as pulsar
from mqbridge.rocketmq.server import support as rocketmq
from mqbridge.tubemq.server import support as tubemq
from tools.generated_page import DOCS, check_or_write

PAGE = DOCS / "reference" / "listeners.md"

_BEGINNING = """\
# What a listener supports

<!-- Written by `python -m tools.listeners_page --write` from the code. Do not edit. -->

What an unmodified SDK can do at a listener, compared with a real server of its system. [What listeners
promise](../explanation/listeners.md) has a page of its own; [Keep your Pulsar SDK](../how-to/keep-your-pulsar-sdk.md), [Keep
your RocketMQ SDK](../how-to/keep-your-rocketmq-sdk.md) and [Keep your TubeMQ SDK](../how-to/keep-your-tubemq-sdk.md) show how to
begin.

- **native**: as a real server does it
- **parked**: what waits is stored in topics of the listener meanwhile
- **differs**: it works, and differs in a way that the backing forces
- **refused**: the client gets an error

A backing is a system and the mode of groups (`groups: own` or `groups: backing`).
"""


_ROCKETMQ = """\
These are the SDKs of the remoting protocol, which have the address of a name server, of 4.x and 5.x and of every language. The
gRPC SDKs of 5.x (apache/rocketmq-clients) connect to RocketMQ's Proxy, and not to a listener.
"""


def page() -> str:
    """Return the whole page."""
    sections = [
        _section("Pulsar SDKs", "", pulsar.BACKINGS, pulsar.TABLE),
        _section("RocketMQ SDKs", _ROCKETMQ, rocketmq.BACKINGS, rocketmq.TABLE),
        _section("TubeMQ SDKs", "", tubemq.BACKINGS, tubemq.TABLE),
    ]
    return "\n".join([_BEGINNING, "\n\n".join("\n".join(section) for section in sections)]) + "\n"


def _section(title: str, text: str, backings: Sequence[Backing], rows: Sequence[SupportRow]) -> Iterator[str]:
    """Yield the lines of one server: a text, the table, and its notes."""
    yield f"## {title}"
    yield ""
    if text:
        yield text
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
