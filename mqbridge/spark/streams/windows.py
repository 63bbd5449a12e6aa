"""Windows over time: tumbling, sliding and session windows, aligned to the epoch, start inclusive and end exclusive."""

from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column
from pyspark.sql import functions as F

UNIT_MS = {"milliseconds": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}


@dataclass(frozen=True, slots=True)
class Time:
    """A length of time."""

    ms: int

    @classmethod
    def of(cls, count: float, unit: str) -> Self:
        """`count` units: milliseconds, seconds, minutes, hours or days."""
        if unit not in UNIT_MS:
            raise ValueError(f"unknown unit {unit!r}: one of {', '.join(UNIT_MS)}")
        return cls(round(count * UNIT_MS[unit]))

    @classmethod
    def milliseconds(cls, count: float) -> Self:
        """As it says, like the four that follow."""
        return cls.of(count, "milliseconds")

    @classmethod
    def seconds(cls, count: float) -> Self:  # noqa: D102
        return cls.of(count, "seconds")

    @classmethod
    def minutes(cls, count: float) -> Self:  # noqa: D102
        return cls.of(count, "minutes")

    @classmethod
    def hours(cls, count: float) -> Self:  # noqa: D102
        return cls.of(count, "hours")

    @classmethod
    def days(cls, count: float) -> Self:  # noqa: D102
        return cls.of(count, "days")

    def __str__(self) -> str:
        """As Spark reads an interval."""
        return f"{self.ms} milliseconds"


@dataclass(frozen=True, slots=True)
class Window:
    """How time is cut. Make one with `tumbling`, `sliding` or `session`."""

    size: Time
    """Of a session: the gap that ends it."""
    slide: Time | None = None
    is_session: bool = False

    def __post_init__(self) -> None:
        """Refuse lengths that cut nothing."""
        if self.size.ms <= 0 or (self.slide is not None and not 0 < self.slide.ms <= self.size.ms):
            raise ValueError("a window is longer than nothing, and slides by more than nothing and not more than its size")

    @classmethod
    def tumbling(cls, size: Time) -> Self:
        """Windows of `size`, one behind the other."""
        return cls(size)

    @classmethod
    def sliding(cls, size: Time, slide: Time) -> Self:
        """Windows of `size`, a new one every `slide`."""
        return cls(size, slide)

    @classmethod
    def session(cls, gap: Time) -> Self:
        """A window per key and run of events of which none is `gap` or more behind the one before."""
        return cls(gap, is_session=True)

    def column(self, time: str) -> Column:
        """The window of the TIMESTAMP column `time`: a struct of start and end, to group by."""
        if self.is_session:
            return F.session_window(time, str(self.size))
        return F.window(time, str(self.size), None if self.slide is None else str(self.slide))

    @property
    def name(self) -> str:
        """The name that Spark gives the column."""
        return "session_window" if self.is_session else "window"


class WindowBuilder:
    """The same under the names of RIP-58."""

    @staticmethod
    def tumblingWindow(size: Time) -> Window:
        """`Window.tumbling`."""
        return Window.tumbling(size)

    @staticmethod
    def slidingWindow(size: Time, slide: Time) -> Window:
        """`Window.sliding`."""
        return Window.sliding(size, slide)

    @staticmethod
    def sessionWindow(gap: Time) -> Window:
        """`Window.session`."""
        return Window.session(gap)
