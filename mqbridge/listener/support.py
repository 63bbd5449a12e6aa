"""What a server supports over each backing: the rows of its support table."""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Support(Enum):
    """How a feature of the protocol is supported."""

    NATIVE = "native"
    """As a real server does it."""
    PARKED = "parked"
    """What waits is stored in topics of the listener meanwhile."""
    DIFFERS = "differs"
    """It works, and differs in a way that the backing forces."""
    REFUSED = "refused"
    """A client gets an error."""


class Backing(NamedTuple):
    """A backing system and a mode of groups: a column of the table."""

    system: str
    groups: str


class SupportCell(NamedTuple):
    """How a feature is supported over one backing.

    text  what differs, or why it is refused: for `REFUSED` this is in the error that the client gets
    code  the protocol's name of the error
    """

    support: Support
    text: str = ""
    code: str = ""


NATIVE = SupportCell(Support.NATIVE)


class SupportRow:
    """A feature, how it is supported in general, and where that is different."""

    def __init__(self, feature: str, cell: SupportCell = NATIVE, exceptions: Mapping[Backing, SupportCell] | None = None) -> None:
        self.feature, self._cell, self._exceptions = feature, cell, exceptions or {}

    def cell(self, backing: Backing) -> SupportCell:
        """Return how the feature is supported over a backing."""
        return self._exceptions.get(backing, self._cell)
