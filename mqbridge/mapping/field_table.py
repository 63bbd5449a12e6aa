"""What becomes of each field of a system's messages, as rows that code, tests, the command line and the published page share.

A system's rows are in its `mapping.table`, and registered with its adapter. A row says which field of the one internal form a
native field becomes, and what happens to that field when a message is written to the system:

    native      a field of the system's own says it
    carried     it travels as a property or pair of the gateway's, and becomes native again in a system that can say it
    recomputed  whoever stores the message makes the value anew; it is read at most
    dropped     it means nothing outside of where it was made; `why` tells the reason
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """What becomes of a field."""

    NATIVE = "native"
    CARRIED = "carried"
    RECOMPUTED = "recomputed"
    DROPPED = "dropped"


NATIVE, CARRIED, RECOMPUTED, DROPPED = Fate


class Row(NamedTuple):
    """One native field (or property of the gateway's), the message field that it is, its fate, and why in one line.

    `own`: it stands for something of this system's alone; what other systems say in that field is not written to it.
    """

    native: str
    field: str | None
    fate: Fate
    why: str
    own: bool = False


class Table(NamedTuple):
    """All rows of a system. `title` is its name in print."""

    system: str
    title: str
    rows: tuple[Row, ...]

    def of_field(self, field: str) -> list[Row]:
        """The rows that a message field is written to or read from."""
        return [row for row in self.rows if row.field == field]

    def carried_fields(self) -> tuple[str, ...]:
        """The message fields that the system has no field of its own for, in the order of the rows."""
        native = {row.field for row in self.rows if row.fate is NATIVE}
        carried = (row.field for row in self.rows if row.fate is CARRIED)
        return tuple(dict.fromkeys(field for field in carried if field is not None and field not in native))

    def natives(self, *fates: Fate) -> frozenset[str]:
        """The native names that have one of these fates."""
        return frozenset(row.native for row in self.rows if row.fate in fates)


class Step(NamedTuple):
    """What becomes of one native field of a source in a target; `target` is empty where it ends."""

    source: str
    field: str | None
    target: str
    fate: Fate
    why: str


def direction(source: Table, target: Table) -> list[Step]:
    """Every field of the source and what it is in the target."""
    return [step for row in source.rows for step in _steps(row, target)]


def _steps(row: Row, target: Table) -> Iterable[Step]:
    if not row.native or (row.native.startswith("mqbridge.") and row.field is not None):
        return  # what was carried is its own field again: the row of that field says what becomes of it
    if row.field is None or row.fate is DROPPED:
        yield Step(row.native, row.field, "", row.fate, row.why)
        return
    taken = [found for found in target.of_field(row.field) if not found.own]
    written = [found for found in taken if found.fate in {NATIVE, CARRIED}]
    names = ", ".join(dict.fromkeys(found.native for found in written))
    best = min(taken, key=lambda found: list(Fate).index(found.fate))
    yield Step(row.native, row.field, names, best.fate, row.why if row.why == best.why else f"{row.why}; {best.why}")
