"""How far a route is and how fast it goes: the arithmetic behind the progress line, the log lines and the metrics."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW_S = 30.0
"""Rates are those of the last batches within so long, and of the last one in any case."""

WORDS = {
    "received": "received",
    "stored": "stored",
    "dead": "dead letters",
    "filtered": "filtered",
    "looped": "looped",
    "skipped": "found stored already",
}
"""What is counted, by its word in the closing line."""

Totals = Mapping[str, int]
"""By the names of `delivery.counters`."""


@dataclass(slots=True)
class Backlog:
    """What lies before a route, in its source's own unit."""

    units: int
    unit: str
    at: float
    """Monotonic time of the measurement."""


@dataclass(slots=True)
class RouteProgress:
    """The progress of one route since the mirror began. Times are monotonic."""

    name: str
    began_at: float
    before: Totals = field(default_factory=dict)
    """Totals of earlier runs from the same checkpoint."""
    totals: Totals = field(default_factory=dict)
    """Totals of all runs, as they stood after the last batch."""
    batches: int = 0
    """Of this run."""
    batch_s: float = 0.0
    """How long the last one took."""
    backlog: Backlog | None = None
    behind: Backlog | None = None
    """The backlog before `backlog`: between the two lies how fast it shrinks."""
    error: str | None = None
    done: bool = False
    _history: deque[tuple[float, int, int]] = field(default_factory=deque)
    """Time, messages stored, bytes received, after each of the last batches."""

    def begin(self, totals: Totals) -> None:
        """These were done by earlier runs."""
        self.before = dict(totals)
        self.totals = dict(totals)
        self._history.append((self.began_at, *self._moved(self.totals)))

    def batch_done(self, now: float, totals: Totals, seconds: float) -> None:
        """A batch is stored; the totals are those after it."""
        self.totals = dict(totals)
        self.batch_s = seconds
        self._history.append((now, *self._moved(self.totals)))
        while len(self._history) > 2 and self._history[1][0] < now - WINDOW_S:
            self._history.popleft()

    def measured(self, backlog: Backlog) -> None:
        """What lies before it now."""
        self.behind, self.backlog = self.backlog, backlog

    def run_totals(self) -> dict[str, int]:
        """What this run did."""
        return {name: count - self.before.get(name, 0) for name, count in self.totals.items()}

    def rates(self, now: float) -> tuple[float, float]:
        """Messages and bytes per second. Falls while nothing comes."""
        if not self._history:
            return 0.0, 0.0
        begun, messages, size = self._history[0]
        seconds = now - begun
        _, last_messages, last_size = self._history[-1]
        if seconds <= 0:
            return 0.0, 0.0
        return (last_messages - messages) / seconds, (last_size - size) / seconds

    @property
    def left_s(self) -> float | None:
        """After how many seconds the backlog is gone, if it goes on shrinking as it did; None where nobody can tell."""
        before, now = self.behind, self.backlog
        if now is None or not now.units:
            return None if now is None else 0.0
        if before is None or now.at <= before.at or now.units >= before.units:
            return None
        return now.units * (now.at - before.at) / (before.units - now.units)

    def line(self, now: float) -> str:
        """For people: what is done, how fast, how much is left and for how long."""
        done = self.run_totals()
        messages, size = self.rates(now)
        parts = [f"{done.get('stored', 0):,} stored", f"{messages:,.0f}/s", f"{size / 1e6:,.1f} MB/s"]
        if done.get("dead"):
            parts.insert(1, f"{done['dead']:,} dead letters")
        if self.backlog is not None:
            parts.append(f"{self.backlog.units:,} {self.backlog.unit} behind" if self.backlog.units else "caught up")
        if self.left_s:
            parts.append(f"{format_left(self.left_s)} left")
        return f"route {self.name}: {', '.join(parts)}"

    @staticmethod
    def _moved(totals: Totals) -> tuple[int, int]:
        return totals.get("stored", 0), totals.get("bytes", 0)


def format_left(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
