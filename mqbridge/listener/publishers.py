"""Opens publishers for the producers of clients. Those of a topic share one outbound, unless they number their messages.

An outbound that nobody uses is closed after LINGER_S: opening one takes requests, and clients come back. One that has failed is
not used again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import KeepsIndexes, Outbound, OutboundSpec
from mqbridge.adapter.tools.deadlines import resolve_deadline, seconds_until
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, Failure, RefusalReason, RequestRefused
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.limits import InFlightBytes, limited
from mqbridge.listener.publisher import Publisher
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Partition, Position
from mqbridge.net.tasks import spawn

log = logging.getLogger(__name__)

LINGER_S = 30.0
"""How long an outbound that nobody uses stays open."""
WINDOW_S = 3600.0
"""How far back the last message of a producer is searched, where the backing has no index of them."""
GRACE_S = 0.5
"""Time after the deadline that outbounds get that obey it."""
SENDER_CLUSTER = "mqbridge-listener"
"""Name of the cluster in the origins of messages that producers of clients have numbered: they are hidden from consumers."""


class _SharedOutbound:
    """An open outbound with its users."""

    __slots__ = ("outbound", "sender", "timer", "topic", "users")

    def __init__(self, topic: ListenedTopic, outbound: Outbound, sender: str | None = None) -> None:
        self.topic, self.outbound, self.sender = topic, outbound, sender
        self.users: set[Publisher] = set()
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_broken(self) -> bool:
        """True if it has failed for one of its users, and so does for all."""
        return any(user.is_broken for user in self.users)


class Publishers:
    """See the module."""

    def __init__(
        self,
        cluster: Cluster,
        in_flight: InFlightBytes,
        open_dead_letters: Callable[[], Awaitable[DeadLetters]],
        *,
        in_order: bool,
    ) -> None:
        """`open_dead_letters` opens the dead-letter topic, and may be called again; `in_order`: see `Publisher`."""
        self._cluster, self._in_flight = cluster, in_flight
        self._open_dead_letters, self._in_order = open_dead_letters, in_order
        self._shared: dict[str, _SharedOutbound] = {}
        """The outbounds that publishers share, by the topic's name in the cluster."""
        self._of: dict[Publisher, _SharedOutbound] = {}
        """The outbound of each open publisher."""
        self._opening = KeyedLocks[str]()
        """Held while the outbound of a topic is opened, by the topic's name in the cluster."""
        self._closing: dict[asyncio.Task[None], _SharedOutbound] = {}
        """Tasks that close outbounds."""
        self._is_closed = False
        self._closed_dead_letters = 0
        """Number of messages of closed publishers that were stored as dead letters."""

    @property
    def dead_letters(self) -> int:
        """Number of messages that were stored as dead letters."""
        return self._closed_dead_letters + sum(publisher.dead_letters for publisher in self._of)

    async def open(self, topic: ListenedTopic, partition: int, sender: str | None = None) -> Publisher:
        """Open a publisher for a partition, by the index by which clients count it. Raises ClusterError, RequestRefused.

        A `sender` numbers its messages, so that none is stored twice: see `Publisher.last_sequence`. There must be no second one
        of its name in this partition.
        """
        topic.partition(partition)
        async with limited(f"opening a producer of topic {topic.name}"):
            if sender is not None:
                return await self._open_sender(topic, partition, sender)
            async with self._opening.hold(topic.backing):
                return self._make(await self._shared_outbound(topic, partition), partition)

    async def _shared_outbound(self, topic: ListenedTopic, partition: int) -> _SharedOutbound:
        """Return the open outbound of a topic that has this partition; open one if there is none."""
        shared = self._shared.get(topic.backing)
        if shared is not None and (shared.is_broken or index_of(shared.outbound, partition) is None):
            self._drop(shared)
            shared = None
        if shared is None:
            shared = _SharedOutbound(topic, await self._open_outbound(topic, None))
            self._shared[topic.backing] = shared
            self._linger(shared)
        return shared

    async def _open_sender(self, topic: ListenedTopic, partition: int, sender: str) -> Publisher:
        """Open an outbound for one sender, and find out what it has stored."""
        await self._wait_closed(topic, sender)
        outbound = await self._open_outbound(topic, sender)
        try:
            index = _checked_index(topic, outbound, partition)
            since = await self._since(topic, partition)
            begins = None if since is None else {index: since}
            stored = (await outbound.resume(sender_partition(topic, sender), begins, [index])).get(index)
        except BaseException:
            await outbound.close()
            raise
        return self._make(_SharedOutbound(topic, outbound, sender), partition, -1 if stored is None else stored[0])

    async def _wait_closed(self, topic: ListenedTopic, sender: str) -> None:
        """Wait until the earlier outbounds of a sender are closed: what they have on the wire may still be stored."""
        closing = [
            task for task, shared in self._closing.items() if (shared.topic.backing, shared.sender) == (topic.backing, sender)
        ]
        if closing:
            await asyncio.wait(closing)

    async def _since(self, topic: ListenedTopic, partition: int) -> Position | None:
        """Return from where the last message of a producer is searched; None: from the first message."""
        if (operations := self._cluster.operations) is None:
            return None
        try:
            positions = await operations.position_at(topic.backing, round((time.time() - WINDOW_S) * 1000))
        except ClusterError as error:
            if error.failure is not Failure.FATAL:
                raise
            log.debug("all messages of topic %s are searched for those of a producer: %s", topic.backing, error)
            return None
        return positions.get(topic.partition(partition))

    async def _open_outbound(self, topic: ListenedTopic, sender: str | None) -> Outbound:
        spec = OutboundSpec(topic.backing, stamp_origin=False, sender=sender, keep_units=True, whole_shares=True)
        outbound = await self._cluster.outbound(spec)
        if self._is_closed:
            await outbound.close()
            raise RequestRefused("the listener is being closed", RefusalReason.NOT_READY)
        return outbound

    def _make(self, shared: _SharedOutbound, partition: int, last_sequence: int | None = None) -> Publisher:
        _checked_index(shared.topic, shared.outbound, partition)
        publisher = Publisher(
            f"{self._cluster.name}/{shared.topic.backing}",
            shared.outbound,
            self._in_flight,
            self._open_dead_letters,
            in_order=self._in_order,
            last_sequence=last_sequence,
        )
        if shared.timer is not None:
            shared.timer.cancel()
            shared.timer = None
        shared.users.add(publisher)
        self._of[publisher] = shared
        return publisher

    def outbound_index(self, publisher: Publisher, partition: int) -> int:
        """Return the index by which an open publisher's outbound counts this partition."""
        index = index_of(self._of[publisher].outbound, partition)
        return partition if index is None else index

    async def close(self, publisher: Publisher, deadline: float | None = None) -> None:
        """Close a publisher once it is answered (see `Publisher.close`), and its outbound soon after its last user."""
        try:
            await publisher.close(deadline)
        finally:
            self._release(publisher)

    def abandon(self, publisher: Publisher) -> None:
        """Close a publisher whose client is gone."""
        publisher.abandon()
        self._release(publisher)

    def _release(self, publisher: Publisher) -> None:
        shared = self._of.pop(publisher, None)
        if shared is None:
            return
        self._closed_dead_letters += publisher.dead_letters
        is_shared = self._shared.get(shared.topic.backing) is shared
        if is_shared and shared.is_broken:
            self._drop(shared)
        shared.users.discard(publisher)
        if not shared.users:
            if self._shared.get(shared.topic.backing) is shared:
                self._linger(shared)
            else:
                self._close_later(shared)

    def _linger(self, shared: _SharedOutbound) -> None:
        shared.timer = asyncio.get_running_loop().call_later(LINGER_S, self._drop, shared)

    def _drop(self, shared: _SharedOutbound) -> None:
        """Use an outbound for no new publisher, and close it when it has no user any more."""
        if self._shared.get(shared.topic.backing) is shared:
            del self._shared[shared.topic.backing]
        if shared.timer is not None:
            shared.timer.cancel()
            shared.timer = None
        if not shared.users:
            self._close_later(shared)

    def _close_later(self, shared: _SharedOutbound, deadline: float | None = None) -> None:
        task = spawn(shared.outbound.close(deadline), f"close of {shared.topic.backing}")
        self._closing[task] = shared
        task.add_done_callback(self._closing.pop)

    def forget(self, topic: ListenedTopic) -> None:
        """Use the outbound of a topic for no new publisher: the topic was deleted."""
        if (shared := self._shared.get(topic.backing)) is not None:
            self._drop(shared)

    async def close_all(self, deadline: float | None = None) -> None:
        """Close everything, by the deadline (loop time), and open nothing more."""
        self._is_closed = True
        deadline = resolve_deadline(deadline)
        await asyncio.gather(*(self.close(publisher, deadline) for publisher in list(self._of)), return_exceptions=True)
        for shared in list(self._shared.values()):
            if shared.timer is not None:
                shared.timer.cancel()
            self._close_later(shared, deadline)
        self._shared.clear()
        if self._closing:
            await asyncio.wait(self._closing, timeout=max(GRACE_S, seconds_until(deadline)))


def sender_partition(topic: ListenedTopic, sender: str) -> Partition:
    """Return the source partition of the messages that a producer of a client has numbered."""
    return Partition(SENDER_CLUSTER, topic.name, sender, 0)


def index_of(outbound: Outbound, partition: int) -> int | None:
    """Return the outbound's index of the partition that clients count by this one; None if it does not know it yet."""
    if isinstance(outbound, KeepsIndexes):
        return outbound.indexed[partition] if partition < len(outbound.indexed) else None
    return partition if partition < outbound.partitions else None


def _checked_index(topic: ListenedTopic, outbound: Outbound, partition: int) -> int:
    """Return the outbound's index of a partition. Raises RequestRefused if it does not know it yet."""
    if (index := index_of(outbound, partition)) is None:
        raise RequestRefused(f"partition {partition} of topic {topic.name} accepts no messages now", RefusalReason.NOT_READY)
    return index
