"""Counters that only grow, read as snapshots; subtract two snapshots for a rate.

A counter is a plain attribute, so that counting is as cheap as an addition.
"""


class Counters:
    """Base class: every slot of a subclass is a counter that starts at 0."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class SendCounters(Counters):
    """Messages of one sender.

    `retried` counts requests sent again, `failed` messages given up, `overtaken` messages stored before one that was submitted
    earlier to the same partition.
    """

    __slots__ = ("failed", "overtaken", "retried", "stored", "stored_bytes")
    failed: int
    overtaken: int
    retried: int
    stored: int
    stored_bytes: int


class ReadCounters(Counters):
    """Gets of one partition. `bytes` counts response bytes; `limited` counts refusals with a wait (452)."""

    __slots__ = ("bytes", "commits", "empty", "failures", "gets", "limited", "messages", "misses", "packs", "registrations")
    bytes: int
    commits: int
    empty: int
    failures: int
    gets: int
    limited: int
    messages: int
    misses: int
    packs: int
    registrations: int


class CallCounters(Counters):
    """Calls to one server. `late` counts calls without a response in time, `reclaimed` idle connections that were closed."""

    __slots__ = ("answers", "connections", "late", "lost", "reclaimed", "requests")
    answers: int
    connections: int
    late: int
    lost: int
    reclaimed: int
    requests: int


def difference(later: dict[str, int], earlier: dict[str, int]) -> dict[str, int]:
    """Return the difference of two snapshots."""
    return {name: value - earlier.get(name, 0) for name, value in later.items()}


def total(snapshots: "list[dict[str, int]]") -> dict[str, int]:
    """Return the sum of snapshots of one kind."""
    found: dict[str, int] = {}
    for snapshot in snapshots:
        for name, value in snapshot.items():
            found[name] = found.get(name, 0) + value
    return found
