"""What a check of a log found."""

from dataclasses import dataclass, field

from mqbridge.log.store.offset_ranges import OffsetRange

MAX_PROBLEMS = 100
"""Number of problems of one kind that are listed."""


@dataclass
class CheckedPartition:
    """A partition: its bounds, the number and the bytes of its intact messages, and what is wrong.

    `lost` are the offsets whose messages are damaged or missing; `hidden` is the number of intact messages to which the index
    does not lead. `notes` are no problems.
    """

    topic: str
    partition: int
    first: int
    next: int
    messages: int
    bytes: int
    hidden: int
    lost: list[OffsetRange]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """True if nothing is wrong with the partition."""
        return not (self.problems or self.lost or self.hidden)


@dataclass
class CheckResult:
    """What is in a log, and what is wrong with it as a whole. `notes` are no problems."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partitions: list[CheckedPartition] = field(default_factory=list)
    lost_newest: int = 0
    """Number of messages that the mark knows as acknowledged and that lie behind the ends of their partitions."""
    positions: int = 0
    """Number of intact committed offsets."""

    @property
    def is_ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems and all(each.is_ok for each in self.partitions)

    def add(self, problems: list[str]) -> None:
        """Add problems of one kind, the first MAX_PROBLEMS of them."""
        self.problems += problems[:MAX_PROBLEMS]
        if len(problems) > MAX_PROBLEMS:
            self.problems.append(f"and {len(problems) - MAX_PROBLEMS} more problems of this kind")
