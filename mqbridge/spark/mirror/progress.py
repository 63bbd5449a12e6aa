"""The progress of a route: its totals, rates and remaining time, for the progress line, the log lines and the metrics."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW_S = 30.0
"""Rates are computed from the last completed batch and those that completed in this period before it."""

COUNT_LABELS = {
    "received": "received",
    "stored": "stored",
    "dead": "dead letters",
    "filtered": "filtered",
    "looped": "looped",
    "skipped": "found stored already",
}
"""The words for each count in the summary at the end of a mirror, by the count's name in `Counts`."""

Totals = Mapping[str, int]
"""Sums over batches, by the field names of `Counts`: messages received, stored and so on, and received `bytes`."""


@dataclass(slots=True)
class Backlog:
    """The backlog of a route."""

    units: int
    """The size of the backlog, counted in `unit`."""
    unit: str
    """The plural name of the source's unit, for example "messages"."""
    measured_at: float
    """Monotonic time in seconds."""


@dataclass(slots=True)
class RouteProgress:
    """The progress of one route since the mirror began. All times are monotonic, in seconds."""

    name: str
    began_at: float
    earlier_totals: Totals = field(default_factory=dict)
    """Totals of the earlier runs with the same checkpoint."""
    totals: Totals = field(default_factory=dict)
    """Totals of this run and the earlier ones, up to the last completed batch."""
    batches: int = 0
    """Completed batches of this run."""
    batch_s: float = 0.0
    """Duration of the last batch."""
    backlog: Backlog | None = None
    previous_backlog: Backlog | None = None
    """The measurement before `backlog`. The difference shows how fast the backlog shrinks."""
    error: str | None = None
    """Why the query failed; None if it did not fail."""
    is_done: bool = False
    """Whether the query has ended, or is not going to start."""
    _history: deque[tuple[float, int, int]] = field(default_factory=deque)
    """Time, total of stored messages and total of received bytes: when the run began, and after each of the last batches."""

    def begin(self, totals: Totals) -> None:
        """Record the totals of earlier runs, before the query starts."""
        self.earlier_totals = dict(totals)
        self.totals = dict(totals)
        self._history.append((self.began_at, *self._messages_and_bytes(self.totals)))

    def record_batch(self, now: float, totals: Totals, batch_s: float) -> None:
        """Record a completed batch: the totals after it, and its duration."""
        self.totals = dict(totals)
        self.batch_s = batch_s
        self._history.append((now, *self._messages_and_bytes(self.totals)))
        # One entry from before the window remains: the rates are the increase since that entry.
        while len(self._history) > 2 and self._history[1][0] < now - WINDOW_S:
            self._history.popleft()

    def record_backlog(self, backlog: Backlog) -> None:
        """Record a new measurement of the backlog."""
        self.previous_backlog, self.backlog = self.backlog, backlog

    def run_totals(self) -> dict[str, int]:
        """Return the totals of this run."""
        return {name: count - self.earlier_totals.get(name, 0) for name, count in self.totals.items()}

    def rates(self, now: float) -> tuple[float, float]:
        """Return stored messages and received bytes per second. The rates fall while no batch completes."""
        if not self._history:
            return 0.0, 0.0
        first_at, first_messages, first_bytes = self._history[0]
        seconds = now - first_at
        _, last_messages, last_bytes = self._history[-1]
        if seconds <= 0:
            return 0.0, 0.0
        return (last_messages - first_messages) / seconds, (last_bytes - first_bytes) / seconds

    @property
    def left_s(self) -> float | None:
        """Seconds until the backlog is empty if it shrinks at the current speed; None if unknown."""
        previous, current = self.previous_backlog, self.backlog
        if current is None:
            return None
        if not current.units:
            return 0.0
        if previous is None or current.measured_at <= previous.measured_at or current.units >= previous.units:
            return None
        return current.units * (current.measured_at - previous.measured_at) / (previous.units - current.units)

    def line(self, now: float) -> str:
        """Return the progress as one line of text: totals of this run, rates, backlog and remaining time."""
        totals = self.run_totals()
        messages_per_s, bytes_per_s = self.rates(now)
        parts = [f"{totals.get('stored', 0):,} stored", f"{messages_per_s:,.0f}/s", f"{bytes_per_s / 1e6:,.1f} MB/s"]
        if totals.get("dead"):
            parts.insert(1, f"{totals['dead']:,} dead letters")
        if self.backlog is not None:
            parts.append(f"{self.backlog.units:,} {self.backlog.unit} behind" if self.backlog.units else "caught up")
        if self.left_s:
            parts.append(f"{format_seconds(self.left_s)} left")
        return f"route {self.name}: {', '.join(parts)}"

    @staticmethod
    def _messages_and_bytes(totals: Totals) -> tuple[int, int]:
        return totals.get("stored", 0), totals.get("bytes", 0)


def format_seconds(seconds: float) -> str:
    """Format a duration: `45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
