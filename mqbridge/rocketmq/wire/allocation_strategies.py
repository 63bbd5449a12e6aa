"""Allocation strategies: every member of a group computes the same division of a topic's queues and takes its own part.

There is no coordinator. All members must use the same strategy and the same order of queues and members, so this code agrees
exactly with Java's. Names are compared by UTF-16 code units, like String.compareTo; beyond U+FFFF, code points order differently.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence

from mqbridge.rocketmq.wire.bodies.queue import Queue

Strategy = Callable[[str, Sequence[Queue], Sequence[str]], list[Queue]]
"""(our client id, sorted queues, sorted client ids of all members) -> our queues."""

VIRTUAL_NODES = 10
"""Virtual nodes per member on the ring of the consistent hash."""


def java_order(text: str) -> bytes:
    """Return a sort key that orders like String.compareTo."""
    return text.encode("utf-16-be", "surrogatepass")


def queue_order(queue: Queue) -> tuple[bytes, bytes, int]:
    """Return a sort key that orders like MessageQueue.compareTo."""
    return java_order(queue.topic), java_order(queue.broker), queue.id


def divide(strategy: Strategy, me: str, queues: Iterable[Queue], members: Collection[str]) -> list[Queue]:
    """Return the queues of a topic that go to the client id `me`; none if it is not among the client ids `members`."""
    if me not in members:
        return []
    return strategy(me, sorted(set(queues), key=queue_order), sorted(set(members), key=java_order))


def averagely(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """AVG, Java's default: consecutive queues; if they cannot be divided evenly, the first members take one more each."""
    index, count = members.index(me), len(members)
    share, remainder = divmod(len(queues), count)
    start = index * share + min(index, remainder)
    return list(queues[start : start + share + (index < remainder)])


def circle(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """AVG_BY_CIRCLE: the members take one queue each in turn, until all queues are taken."""
    return list(queues[members.index(me) :: len(members)])


def consistent_hash(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
    """CONSISTENT_HASH: a queue belongs to the next member on the ring, so few queues move when members join or leave."""
    ring = {_ring_position(f"{member}-{node}"): member for member in members for node in range(VIRTUAL_NODES)}
    positions = sorted(ring)
    return [queue for queue in queues if ring[positions[bisect_left(positions, _queue_position(queue)) % len(positions)]] == me]


def _queue_position(queue: Queue) -> int:
    return _ring_position(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.id}]")


def _ring_position(text: str) -> int:
    """Return the first four bytes of the MD5 hash, as Java does. The hash only distributes queues; it is not for security."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4])


STRATEGIES: dict[str, Strategy] = {"averagely": averagely, "circle": circle, "consistent_hash": consistent_hash}
"""The strategies by their names in the configuration. All members of a group, Java clients included, must use the same one."""
