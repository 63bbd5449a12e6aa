"""Counters that only grow and are read as snapshots; the difference of two snapshots gives a rate.

A counter is a plain attribute, so counting costs one addition.
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
    """Counters of one partition's get requests.

    `bytes` counts response bytes; `limited` counts gets that the Broker refused because of flow control (452). `empty` counts
    successful gets without messages; `misses` counts gets that found no data.
    """

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
    """Counters of the calls to one server.

    `late` counts calls that timed out, `lost` calls whose connection was lost, `reclaimed` idle connections that were closed.
    """

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
    """Return the sum of snapshots, counter by counter."""
    found: dict[str, int] = {}
    for snapshot in snapshots:
        for name, value in snapshot.items():
            found[name] = found.get(name, 0) + value
    return found
