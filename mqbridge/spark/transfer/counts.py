"""The numbers of messages that a transfer received, stored and skipped."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """The result of one or several transfers. All fields count messages, except for `bytes`.

    A message counts once in `received`, `bytes` and `filtered`, and once per target in the other fields.
    """

    received: int = 0
    bytes: int = 0
    """Bytes of the received messages."""
    stored: int = 0
    """Messages that this transfer stored, without dead letters."""
    skipped: int = 0
    """Messages that an earlier attempt had stored."""
    dead: int = 0
    """Messages for which a dead letter was stored."""
    filtered: int = 0
    """Messages that the filter excluded."""
    looped: int = 0
    """Messages that loop prevention dropped."""
    by_target: dict[str, int] = field(default_factory=dict)
    """By target (`cluster/topic`), the messages that were stored or skipped there, or became dead letters."""

    def add(self, other: "Counts") -> None:
        """Add the counts of another transfer."""
        for name in ("received", "bytes", "stored", "skipped", "dead", "filtered", "looped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for label, count in other.by_target.items():
            self.by_target[label] = self.by_target.get(label, 0) + count

    @classmethod
    def total(cls, counts: Iterable["Counts"]) -> "Counts":
        """Return the sum of the counts."""
        total = cls()
        for one_transfer in counts:
            total.add(one_transfer)
        return total
