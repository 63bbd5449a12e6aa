"""Counters that only grow and are read as snapshots; the difference of two snapshots gives a rate.

A counter is a plain attribute, so counting costs one addition.
"""


class CounterSet:
    """Base class: every slot of a subclass is a counter that starts at 0."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class SendCounters(CounterSet):
    """Counters of one sender's messages.

    `stored` and `failed` count messages with this result, `stored_bytes` the bytes of the stored ones, `retried` requests that
    were sent again, and `overtaken` messages that were stored before a message that was submitted earlier to the same partition.
    """

    __slots__ = ("failed", "overtaken", "retried", "stored", "stored_bytes")
    failed: int
    overtaken: int
    retried: int
    stored: int
    stored_bytes: int


class ReadCounters(CounterSet):
    """Counters of one partition's requests.

    `gets` counts the get requests that were sent. A response to a get counts in `packs` if it contained messages, in `empty` if
    the get read data without a message that matches the filter, in `misses` if there was no data to read, or in `limited` if
    the Broker's flow control refused it (452). `failures` counts requests that failed, or were refused for another reason.
    `bytes` counts the bytes of responses with data, `messages` the messages in them, `commits` successful commits,
    `registrations` how often the consumer registered for the partition, and `possible_gaps` how often the store had deleted
    unread data that may have had messages of the partition.
    """

    __slots__ = (
        "bytes",
        "commits",
        "empty",
        "failures",
        "gets",
        "limited",
        "messages",
        "misses",
        "packs",
        "possible_gaps",
        "registrations",
    )
    bytes: int
    commits: int
    empty: int
    failures: int
    gets: int
    limited: int
    messages: int
    misses: int
    packs: int
    possible_gaps: int
    registrations: int


class CallCounters(CounterSet):
    """Counters of the calls to one server.

    `requests` counts the requests sent, `answers` responses, `late` calls without a response in time, `lost` calls whose
    connection was lost before the response, `connections` the connections that were made, and `reclaimed` those that were
    closed because idle.
    """

    __slots__ = ("answers", "connections", "late", "lost", "reclaimed", "requests")
    answers: int
    connections: int
    late: int
    lost: int
    reclaimed: int
    requests: int


def difference(later: dict[str, int], earlier: dict[str, int]) -> dict[str, int]:
    """Return the difference of two snapshots, counter by counter; a counter that `earlier` lacks was 0."""
    return {name: value - earlier.get(name, 0) for name, value in later.items()}


def total(snapshots: "list[dict[str, int]]") -> dict[str, int]:
    """Return the sum of snapshots, counter by counter."""
    sums: dict[str, int] = {}
    for snapshot in snapshots:
        for name, value in snapshot.items():
            sums[name] = sums.get(name, 0) + value
    return sums
