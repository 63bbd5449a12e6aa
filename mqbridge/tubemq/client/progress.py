"""Where the reading of a partition stands, as far as its Broker has said it, and whether that can be right.

Offsets count bytes of an index that the partitions of a store share: they grow, and say nothing else. Going forward past what was
to come next is a loss that must be noticed; going back is a Broker that lost what it had not written, or was set back.
"""

import logging

from mqbridge.errors import GapError

log = logging.getLogger(__name__)


class Progress:
    """`safe`: nothing before it is unread or unconfirmed. `expected`: where the next pack must start, when that is known."""

    __slots__ = ("doubt", "expected", "rewind", "safe", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.safe = 0
        self.expected: int | None = None
        self.doubt = False
        """A get was sent and its answer has not come."""
        self.rewind = False
        """A commit of a pack that is out was sent and its answer has not come: reading may only go on at `safe`."""

    def begin(self, given: int, asked: int | None) -> None:
        """The Broker registered us at `given`; `asked` is where we wanted to be, when we said so."""
        self.doubt = self.rewind = False
        self.safe = given
        self.expected = given if asked is None else min(given, asked)

    def ended_at(self, offset: int) -> None:
        """A commit said where the pack ended."""
        self.expected = self.safe = offset
        self.rewind = False

    def took(self, offset: int) -> None:
        """A read started at `offset`. Raises GapError when that is past what was to come."""
        self.check(offset)
        self.expected = None
        self.safe = offset
        self.doubt = False

    def check(self, offset: int) -> None:
        """Raises GapError when `offset` is past what was to come; says when it went back."""
        expected = self.expected
        if expected is not None and offset > expected:
            raise GapError(
                f"{self.what} lost data: reading was to go on at offset {expected}, the Broker went on at {offset}. "
                "What lies between was deleted before it was read; give the topic a longer retention",
                (offset, 0),
            )
        if offset < self.safe:
            log.warning(
                "%s went back from offset %d to %d: the Broker lost what it had not written to disk, or was set back",
                self.what,
                self.safe,
                offset,
            )
