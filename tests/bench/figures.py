"""Figures of benchmark runs, their medians and ratios."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Figures:
    """Figures of one run, or medians of several runs."""

    rate: float
    """Messages per second."""
    cpu: float
    """CPU-seconds per million messages, which is microseconds per message."""
    rss_mb: float
    """Peak resident memory, 10^6 bytes."""
    batch: float = 0
    """Messages per received batch of the gateway; 0 if unknown."""
    kernel: float = 0
    """The part of `cpu` that was spent in the kernel; 0 if unknown."""

    def beside(self, other: Figures) -> Figures:
        """Return these figures divided by those of another run."""
        return Figures(self.rate / other.rate, self.cpu / other.cpu, self.rss_mb / other.rss_mb)

    def __str__(self) -> str:
        batch = f", {self.batch:.0f} messages per batch" if self.batch else ""
        return f"{self.rate:,.0f} messages/s, {self.cpu:.2f} CPU-s per million, {self.rss_mb:.0f} MB{batch}"


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress and CPU time of a running gateway at one moment."""

    at: float
    """Time of the reading, by a monotonic clock."""
    done: int
    """Messages that were stored, filtered out or written as dead letters."""
    batches: int
    user_s: float
    """CPU-seconds of the process in user mode."""
    kernel_s: float
    """CPU-seconds of the process in the kernel."""

    def figures(self, begin: Reading, rss_mb: float) -> Figures:
        """Return the figures for the time between an earlier reading and this one."""
        messages, batches = self.done - begin.done, self.batches - begin.batches
        if messages <= 0:
            raise ValueError("there are too few messages to measure: all were stored before the second reading")
        user, kernel = ((now - before) / messages * 1e6 for now, before in zip(self._cpu, begin._cpu, strict=True))
        return Figures(messages / (self.at - begin.at), user + kernel, rss_mb, messages / batches if batches else 0, kernel)

    @property
    def _cpu(self) -> tuple[float, float]:
        return self.user_s, self.kernel_s


def median(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(*(statistics.median(getattr(run, field) for run in runs) for field in Figures.__slots__))


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU-seconds of a process in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def peak_rss_mb(pid: int) -> float:
    """Return the peak resident size of a process in 10^6 bytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6
