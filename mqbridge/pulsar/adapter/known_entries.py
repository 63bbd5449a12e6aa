"""What is known about the entries of ledgers, which a broker cannot tell any more once it has deleted a ledger.

A range that begins in a deleted ledger lost messages only if the ledger held an entry after that position: the end of a ledger is
the beginning of the next one. Every position that a reader was given proves that the entries before it existed.
"""

import logging

from mqbridge.message import Position, format_position

log = logging.getLogger(__name__)

MAX_LEDGERS = 64
"""Maximum number of ledgers remembered per partition; the oldest are forgotten first."""


class KnownEntries:
    """The number of entries that each ledger is known to have held, by partition; it may have held more."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}
        """By full topic name of a partition and by ledger id."""
        self._warned_at: dict[str, Position] = {}
        """By full topic name of a partition, the position of the last warning."""

    def add(self, topic: str, ledger: int, count: int) -> None:
        """Remember that a ledger held this number of entries, or more."""
        if ledger < 0 or count <= 0:
            return
        counts = self._counts.setdefault(topic, {})
        counts[ledger] = max(counts.get(ledger, 0), count)
        if len(counts) > MAX_LEDGERS:
            del counts[min(counts)]

    def add_before(self, topic: str, position: Position) -> None:
        """Remember the entries before a position in its ledger."""
        ledger, entry, index = position
        self.add(topic, ledger, entry + (index > 0))

    def deleted_from(self, topic: str, begin: Position, first_ledger: int | None) -> bool:
        """Return True if an entry at `begin` or later is known that was in a ledger before `first_ledger`.

        `first_ledger` is the first ledger that the partition still holds; None if it holds no entry.
        """
        entries_before = begin[1] + (begin[2] > 0)
        return any(
            count > (entries_before if ledger == begin[0] else 0)
            for ledger, count in self._counts.get(topic, {}).items()
            if ledger >= begin[0] and (first_ledger is None or ledger < first_ledger)
        )

    def warn_unknown(self, topic: str, begin: Position) -> None:
        """Log that a range begins in a deleted ledger of unknown length; a repeated warning for the same position is left out."""
        if self._warned_at.get(topic) != begin:
            self._warned_at[topic] = begin
            log.warning(
                "topic %s: the ledger of position %s is deleted, and the broker cannot tell whether it held messages after this "
                "position that were not read; reading continues with the oldest stored message",
                topic,
                format_position(begin),
            )
