"""Clocks of a log: the time for leases, and the age of messages.

No promise of a log rests on the wall clock. It jumps when a person or NTP sets it, and a machine without a battery starts in
1970. Wall-clock times are only stored so that `position_at` finds messages by time.

Times of CLOCK_MONOTONIC and CLOCK_BOOTTIME can only be compared within one clock domain: one boot of one kernel, and one time
namespace (containers may have their own). Processes of different domains may share a file, such as two virtual machines.
"""

import functools
import threading
import time
import uuid
from pathlib import Path
from typing import NamedTuple

SETTLE_MS = 600_000
"""Time after a start in another clock domain before the wall clock is believed: NTP has corrected it by then, if it was wrong."""
EARLIEST_WALL_MS = 1_577_836_800_000
"""2020-01-01: an earlier wall-clock time is that of a machine that does not know the time."""


@functools.cache
def clock_domain() -> str:
    """Return the name of this process's clock domain; of a random one, equal to no other, if the system does not tell it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return uuid.uuid4().hex


def clock_ms() -> int:
    """Return the time for leases in ms, by a clock that all processes of a clock domain share."""
    return time.monotonic_ns() // 1_000_000


_AGE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ms() -> int:
    """Return the time in ms by the clock for ages, which also counts the time that the machine was suspended."""
    return time.clock_gettime_ns(_AGE_CLOCK) // 1_000_000


def now_ms() -> int:
    """Return the wall-clock time in ms since the epoch."""
    return time.time_ns() // 1_000_000


class ClockReading(NamedTuple):
    """The same instant by the age clock of a log, by the wall clock, and by `boot_ms` of a clock domain."""

    age_ms: int
    wall_ms: int
    boot_ms: int
    domain: str


def first_reading() -> ClockReading:
    """Return the reading of a new log: its age clock starts at the wall-clock time, but only its differences mean something."""
    return ClockReading(now_ms(), now_ms(), boot_ms(), clock_domain())


class AgeClock:
    """The age clock of a log: advances with `boot_ms` while a process has the log open, and with the wall clock in between.

    Within one clock domain, it also advances by `boot_ms` while no process has the log open. After a restart of the machine, the
    time for which it was off counts only SETTLE_MS later, and never if the wall clock has gone back. So a wall clock that is
    wrong for a while keeps messages for longer, and never drops them earlier. Used by several threads.
    """

    def __init__(self, stored: ClockReading) -> None:
        """`stored` is the last reading in the file."""
        self._stored = stored
        self._began_boot_ms = boot_ms()
        is_known = stored.domain == clock_domain() and stored.boot_ms <= self._began_boot_ms
        self._base_ms = stored.age_ms + (self._began_boot_ms - stored.boot_ms if is_known else 0)
        """The time at the start, as far as it is known."""
        self._off_ms = 0 if is_known else None
        """The time for which the machine was off; None while it is not known."""
        self._lock = threading.Lock()

    @property
    def is_settled(self) -> bool:
        """False while the time between the stored reading and the start is not known yet."""
        return self._off_ms is not None

    def read(self) -> ClockReading:
        """Return the present reading, by which messages are judged: it may be too low."""
        boot, wall = boot_ms(), now_ms()
        running_ms = boot - self._began_boot_ms
        if self._off_ms is None and running_ms >= SETTLE_MS:
            with self._lock:
                if self._off_ms is None:
                    self._off_ms = self._off_by(wall, running_ms)
        off_ms = self._off_ms or 0
        return ClockReading(self._base_ms + off_ms + running_ms, wall, boot, clock_domain())

    def stamp(self) -> ClockReading:
        """Return the reading for a new message: it may be too high, since the time off is added to it at once."""
        reading = self.read()
        if self._off_ms is not None:
            return reading
        off_ms = self._off_by(reading.wall_ms, reading.boot_ms - self._began_boot_ms)
        return reading._replace(age_ms=reading.age_ms + off_ms)

    def _off_by(self, wall_ms: int, running_ms: int) -> int:
        """Return the time for which the machine was off, by the wall clock."""
        is_known = self._stored.wall_ms >= EARLIEST_WALL_MS
        return max(0, wall_ms - self._stored.wall_ms - running_ms) if is_known else 0
