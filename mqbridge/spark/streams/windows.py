"""Tumbling, sliding and session windows.

The start of a window is inclusive and its end exclusive. Tumbling and sliding windows are aligned to the epoch.
"""

from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column
from pyspark.sql import functions as F

UNIT_MS = {"milliseconds": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}


@dataclass(frozen=True, slots=True)
class Time:
    """A duration, under the name that RIP-58 (the API of RocketMQ Streams) gives it."""

    ms: int

    @classmethod
    def of(cls, count: float, unit: str) -> Self:
        """Return a duration of `count` units. The unit is milliseconds, seconds, minutes, hours or days."""
        if unit not in UNIT_MS:
            raise ValueError(f"unknown unit {unit!r}: use one of {', '.join(UNIT_MS)}")
        return cls(round(count * UNIT_MS[unit]))

    @classmethod
    def milliseconds(cls, count: float) -> Self:
        """Return a duration of `count` milliseconds. The next four methods do the same for their units."""
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
        """Return the duration as text that Spark parses as an interval."""
        return f"{self.ms} milliseconds"


@dataclass(frozen=True, slots=True)
class Window:
    """A definition of windows: their kind and size. Create it with `tumbling`, `sliding` or `session`."""

    size: Time
    """The length of a window. For a session window: the gap that ends the session."""
    slide: Time | None = None
    """The time between the starts of two sliding windows; None for other windows."""
    is_session: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if the size or the slide is out of range."""
        if self.size.ms <= 0 or (self.slide is not None and not 0 < self.slide.ms <= self.size.ms):
            raise ValueError(
                f"invalid window (size {self.size}, slide {self.slide}): the size must be above 0, and the slide "
                "above 0 and at most the size"
            )

    @classmethod
    def tumbling(cls, size: Time) -> Self:
        """Return windows of `size` that follow each other without overlap."""
        return cls(size)

    @classmethod
    def sliding(cls, size: Time, slide: Time) -> Self:
        """Return windows of `size`. A new window starts every `slide`."""
        return cls(size, slide)

    @classmethod
    def session(cls, gap: Time) -> Self:
        """Return session windows: a session of a key ends when no event follows for `gap`."""
        return cls(gap, is_session=True)

    def column(self, time: str) -> Column:
        """Return a column to group by: the window of the TIMESTAMP column `time`, as a struct of start and end."""
        if self.is_session:
            return F.session_window(time, str(self.size))
        return F.window(time, str(self.size), None if self.slide is None else str(self.slide))

    @property
    def name(self) -> str:
        """The name that Spark gives to the result of `column`."""
        return "session_window" if self.is_session else "window"


class WindowBuilder:
    """Creates windows, with the method names of RIP-58."""

    @staticmethod
    def tumblingWindow(size: Time) -> Window:
        """Return `Window.tumbling(size)`."""
        return Window.tumbling(size)

    @staticmethod
    def slidingWindow(size: Time, slide: Time) -> Window:
        """Return `Window.sliding(size, slide)`."""
        return Window.sliding(size, slide)

    @staticmethod
    def sessionWindow(gap: Time) -> Window:
        """Return `Window.session(gap)`."""
        return Window.session(gap)
