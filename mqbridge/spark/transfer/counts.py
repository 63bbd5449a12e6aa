"""What a transfer did."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Messages, unless said otherwise."""

    received: int = 0
    bytes: int = 0
    stored: int = 0
    """Stored by targets, those that were there before left out; one that goes to two targets counts twice."""
    skipped: int = 0
    """Found stored by an earlier attempt."""
    dead: int = 0
    filtered: int = 0
    looped: int = 0
    by_target: dict[str, int] = field(default_factory=dict)
    """Messages that went there or were there before, by `cluster/topic`; those that it refused count too."""

    def add(self, other: "Counts") -> None:
        """Add those of another transfer."""
        for name in ("received", "bytes", "stored", "skipped", "dead", "filtered", "looped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for label, count in other.by_target.items():
            self.by_target[label] = self.by_target.get(label, 0) + count

    @classmethod
    def total(cls, counts: Iterable["Counts"]) -> "Counts":
        """The sum."""
        total = cls()
        for each in counts:
            total.add(each)
        return total
