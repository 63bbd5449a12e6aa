"""Keeps the messages that own groups need, in a cluster that keeps messages only for groups of its own, as Pulsar does.

There the listener has one group in each topic of its own groups, which nobody consumes. It is created before the first own group
gets its position, at the first message, and follows the lowest position of them. It is never deleted: whoever gives up a listener
deletes the group `mqbridge-LISTENER`, which otherwise keeps messages for ever.

What this rests on: what the state file has is written before the group is moved there. While a topic has no own group, and in
partitions in which one of them has no position yet, the group stays where it is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import GroupMaker
from mqbridge.errors import ClusterError
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

MOVE_S = 10.0
"""Pause between two moves of the group: each takes several requests for every partition."""


class Retainer:
    """See the module. In a cluster that keeps messages by time it does nothing."""

    def __init__(
        self, cluster: Cluster, listener: str, find_needed: Callable[[ListenedTopic], Awaitable[Mapping[str, Position]]]
    ) -> None:
        """`find_needed` returns by partition name from where on messages are needed; without those that must not be moved."""
        self.group = f"mqbridge-{listener}"
        """Name of the group in the cluster."""
        self._cluster, self._find_needed = cluster, find_needed
        self._topics: dict[str, ListenedTopic] = {}
        """The topics that have own groups, by their names in the cluster."""
        self._created: dict[str, frozenset[str]] = {}
        """The partitions in which the group exists, by the topic's name in the cluster."""
        self._moved: dict[tuple[str, str], Position] = {}
        """Where the group was moved last, by the topic's name in the cluster and the partition."""
        self._locks = KeyedLocks[str]()
        """Held while the group of a topic is created or moved."""
        self._failed: set[str] = set()
        """Topics whose last attempt has failed."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_active(self) -> bool:
        """True if the cluster keeps messages for groups of its own."""
        return isinstance(self._cluster.operations, GroupMaker)

    async def keep(self, topic: ListenedTopic) -> None:
        """Keep all messages of a topic from now on. Raises ClusterError if the group cannot be created."""
        if self.is_active:
            self.watch(topic)
            async with self._locks.hold(topic.backing):
                await self._create(topic)

    def watch(self, topic: ListenedTopic) -> None:
        """Keep the messages of a topic that has own groups already: the group is created soon, if somebody has deleted it."""
        if not self.is_active or self._is_closed:
            return
        self._topics[topic.backing] = topic
        if self._task is None:
            self._task = spawn(self._run(), f"retention of {self.group}")

    def forget(self, topic: ListenedTopic) -> None:
        """Forget a topic that is being deleted, or whose groups are."""
        self._topics.pop(topic.backing, None)
        self._created.pop(topic.backing, None)
        self._failed.discard(topic.backing)
        for key in [key for key in self._moved if key[0] == topic.backing]:
            del self._moved[key]

    async def close(self) -> None:
        """Move nothing any more; the group stays."""
        self._is_closed = True
        await cancel(self._task)

    async def _run(self) -> None:
        while True:
            for topic in list(self._topics.values()):
                try:
                    await self._follow(topic)
                except ClusterError as error:
                    level = logging.DEBUG if topic.backing in self._failed else logging.WARNING
                    self._failed.add(topic.backing)
                    log.log(level, "messages of topic %s may not be kept for group %s: %s", topic.backing, self.group, error)
                except Exception:
                    log.exception("group %s of topic %s cannot be moved", self.group, topic.backing)
                else:
                    self._failed.discard(topic.backing)
            await asyncio.sleep(MOVE_S)

    async def _follow(self, topic: ListenedTopic) -> None:
        """Create the group where it is missing, and move it to what is needed. Raises ClusterError."""
        async with self._locks.hold(topic.backing):
            await self._create(topic)
            needed = await self._find_needed(topic)
            moves = {name: position for name, position in needed.items() if self._moved.get((topic.backing, name)) != position}
            operations = self._cluster.operations
            if moves and operations is not None and topic.backing in self._topics:
                await operations.move(topic.backing, self.group, moves)
                self._moved.update({(topic.backing, name): position for name, position in moves.items()})

    async def _create(self, topic: ListenedTopic) -> None:
        operations, partitions = self._cluster.operations, frozenset(topic.partitions.values())
        if isinstance(operations, GroupMaker) and not partitions <= self._created.get(topic.backing, frozenset()):
            await operations.create_group(topic.backing, self.group)
            self._created[topic.backing] = partitions
