"""Counters that only grow, read by snapshots; whoever wants rates subtracts two of them.

A counter is a plain attribute, so that counting costs what adding two numbers costs.
"""


class Counters:
    """The base: every slot of a subclass is a counter that starts at 0."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, int]:
        """All counters by name, as they are now."""
        return {name: getattr(self, name) for name in self.__slots__}


class SendCounters(Counters):
    """One sender's messages.

    `retried` counts requests that were sent once more, `failed` messages that were given up, `overtaken` messages that were
    stored before one that was submitted earlier to the same partition.
    """

    __slots__ = ("failed", "overtaken", "retried", "stored", "stored_bytes")
    failed: int
    overtaken: int
    retried: int
    stored: int
    stored_bytes: int


class ReadCounters(Counters):
    """One partition's gets. `bytes` are those of the answers; `limited` counts refusals with a wait (452)."""

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
    """One session's calls. `late` are calls without an answer in time, `reclaimed` connections that were closed for idleness."""

    __slots__ = ("answers", "connections", "late", "lost", "reclaimed", "requests")
    answers: int
    connections: int
    late: int
    lost: int
    reclaimed: int
    requests: int


def difference(later: dict[str, int], earlier: dict[str, int]) -> dict[str, int]:
    """What happened between two snapshots."""
    return {name: value - earlier.get(name, 0) for name, value in later.items()}


def total(snapshots: "list[dict[str, int]]") -> dict[str, int]:
    """The sum of snapshots of one kind."""
    found: dict[str, int] = {}
    for snapshot in snapshots:
        for name, value in snapshot.items():
            found[name] = found.get(name, 0) + value
    return found
