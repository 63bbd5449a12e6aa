"""Pulls: each reads messages of one queue from an offset on, and waits for a while if there are none.

A client has one `QueuePull` for each queue that it pulls for a group. It usually has one pull at a time, and more when it has
changed its mind: then each is served by itself.

    FREE      no pull waits
    WAITING   a pull, or more, waits for messages
    LOST      another gateway has got the queue, or the group was moved in it, and the client does not know: it may have messages
              that it has not processed
    CLOSED    the client is gone, or has not pulled for a while

        pull              FREE -> WAITING, or answered at once;  LOST -> FREE, answered with PULL_OFFSET_MOVED
        (answered)        WAITING -> FREE
        (lost, moved)     WAITING -> FREE, answered with PULL_OFFSET_MOVED (other languages: -> LOST);  FREE -> LOST
        (LOST_S pass)     LOST -> FREE: the client is sent RESET_CONSUMER_CLIENT_OFFSET
        (idle, end)       all -> CLOSED

Members of a group of the cluster that share a topic get the messages of the lane that this gateway holds, and wait while another
gateway has it. A pull that commits comes from such a member; one that has connected again waits until its heartbeat says so.
Everybody else (broadcasts, clients that assign themselves queues, tools) reads by position, as all do where the gateway keeps the
groups itself: that moves no group.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure, LaneRevoked, MqbridgeError, RemoteProtocolError
from mqbridge.listener.limits import limited
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.numbered import Slice
from mqbridge.listener.queue_feed import OutOfReach, QueueFeed, QueueFeedState
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Unit
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.server.broker import Broker
from mqbridge.rocketmq.server.connection import LANGUAGES_WITHOUT_MOVE, Served, ServedConnection
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.support import NO_SQL
from mqbridge.rocketmq.wire.bodies.offsets import ResetOffsets
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.groups import ResetOffsetHeader
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader, PullResult
from mqbridge.rocketmq.wire.tags import SQL92, split_expression

log = logging.getLogger(__name__)

MAX_HOLD_S = 20.0
"""Longest time that a pull is held: clients wait 30 s for the answer, and some write their time in nanoseconds."""
FINISHING_HOLD_S = 0.2
"""How long a pull is held while its queue is about to be given up: the next pull brings the client's commit."""
LOST_S = 1.0
"""Time in which a client is expected to pull from a queue that was lost; otherwise it is told by a request."""
MAX_PULL_MESSAGES, DEFAULT_PULL_BYTES, MAX_PULL_BYTES = 1024, 256 << 10, 4 << 20
"""Limits of an answer. One message is larger than that, if it was stored so."""
IDLE_S = 60.0
"""Time without a pull after which what is kept for it is dropped."""
SWEEP_S = 15.0
"""Time between two looks for pulls that are not used any more."""
MAX_QUEUES = 20_000
"""Maximum number of queues that one client pulls."""


class PullKey(NamedTuple):
    """What a client pulls: the group, the topic as the client names it, and the queue."""

    group: str
    topic: str
    queue: int


class PullState(Enum):
    """The state of a pull, see the module."""

    FREE = "free"
    WAITING = "waiting"
    LOST = "lost"
    CLOSED = "closed"


class MovedError(MqbridgeError):
    """The client has to go on at another offset."""

    def __init__(self, number: int) -> None:
        super().__init__(f"pull from {number} on")
        self.number = number


class QueuePull:
    """See the module."""

    def __init__(self, broker: Broker, link: ServedConnection, key: PullKey, topic: ListenedTopic) -> None:
        self.state = PullState.FREE
        self._loop = asyncio.get_running_loop()
        self.key, self.topic, self.link = key, topic, link
        self.used_at = 0.0
        """Loop time of the last pull."""
        self.feed: QueueFeed | None = None
        """The lane that has served the last pull; None if it was read by position."""
        self._broker = broker
        self._waiting: dict[asyncio.Timeout, None] = {}
        """The time limits of pulls that wait."""
        self._moves = 0
        """Number of times that the lane was lost, or the group was moved in the queue."""
        self._readers: list[NumberReader] = []
        """Readers that no pull uses now, the one that was used last at the end."""
        self._first = self._next = 0
        """The offsets between which the queue had messages at the last look."""
        self._lost_timer: asyncio.TimerHandle | None = None

    # --- a pull -----------------------------------------------------------------------------------------------------------

    def serve_at_once(self, request: Command, header: PullHeader, tags: frozenset[str]) -> Command | None:
        """Return the answer to a pull if there is one without waiting; otherwise None, and `serve` is called."""
        self.used_at = self._loop.time()
        if self.state is PullState.LOST and self._can_move:
            return None
        if not self.link.has_room:
            return None
        number, feed = header.queue_offset, self._find_feed()
        if feed is not None:
            if not feed.is_ready(number):
                return None
            self.feed = feed
            return self._answer(request, feed.take(number, *_limits_of(header)), tags)
        reader = self._readers[-1] if self._readers and self._is_by_position() else None
        if reader is None or not reader.is_ready(number):
            return None
        self.feed = None
        return self._answer(request, reader.take(number, *_limits_of(header)), tags)

    async def serve(self, request: Command, header: PullHeader, tags: frozenset[str]) -> Command:
        """Return the answer to a pull. Raises ClusterError, RequestRefused."""
        await self.link.wait_for_room()
        if self.state is PullState.LOST and self._can_move:
            committed = await self._broker.committed_number(self.key.group, self.topic, self.key.queue)
            if self.state is PullState.LOST:
                self._set_free()
                return self._nothing(request, Status.PULL_OFFSET_MOVED, header.queue_offset if committed is None else committed)
        self.used_at = self._loop.time()
        if self.state is PullState.FREE:
            self.state = PullState.WAITING
        moves, limit = self._moves, asyncio.timeout(self._hold_s(header))
        status, number = Status.PULL_NOT_FOUND, header.queue_offset
        self._waiting[limit] = None
        try:
            async with limit:
                found = await self._read(header)
                if not self.link.has_room:
                    del found  # there may be many such pulls
                    found = await self._read_with_room(header)
        except TimeoutError:
            pass
        except MovedError as moved:
            status, number = Status.PULL_OFFSET_MOVED, moved.number
        else:
            if moves == self._moves or not self._can_move:
                return self._answer(request, found, tags)
            # the client has to learn of the move, and reads these messages again
        finally:
            del self._waiting[limit]
            if not self._waiting and self.state is PullState.WAITING:
                self.state = PullState.FREE
        if moves != self._moves and self._can_move:
            committed = await self._broker.committed_number(self.key.group, self.topic, self.key.queue)
            status, number = Status.PULL_OFFSET_MOVED, number if committed is None else committed
        return self._nothing(request, status, number)

    def _hold_s(self, header: PullHeader) -> float:
        feed = self._find_feed()
        if feed is not None and feed.state is QueueFeedState.FINISHING:
            return FINISHING_HOLD_S
        if header.sys_flag & PullFlag.SUSPEND:
            return min(max(0, header.suspend_timeout_millis) / 1000, MAX_HOLD_S)
        return MAX_HOLD_S  # what is there is waited for; if there is nothing, `_check_bounds` says so

    async def _read(self, header: PullHeader) -> Slice:
        """Wait for messages. Raises MovedError, TimeoutError if there are none and the client does not wait, ClusterError."""
        if not header.sys_flag & PullFlag.SUSPEND and self._broker.is_expected(self.link, self.key.group):
            raise TimeoutError  # its heartbeat may be 30 s away, or never come
        await self._broker.wait_for_heartbeat(self.link, self.key.group)
        if not self._is_shared():
            self.feed = None
            return await self._read_by_position(header)
        feed = await self._broker.wait_for_feed(self.key.group, self.topic, self.key.queue)
        group = self._broker.clients.consumers.get(self.key.group)
        may_skip = group is not None and group.is_passive(self.link)
        if feed.state is QueueFeedState.HELD and feed.next is not None and header.queue_offset != feed.next:
            await self._check_bounds(header, may_wait=True)
        elif not header.sys_flag & PullFlag.SUSPEND and not feed.is_ready(header.queue_offset):
            await self._check_bounds(header, may_wait=False)
        self.feed = feed
        try:
            return await feed.read(header.queue_offset, *_limits_of(header), may_skip=may_skip)
        except OutOfReach:
            return await self._read_by_position(header)
        except LaneRevoked as revoked:
            raise TimeoutError from revoked  # see `on_lost` and `on_moved`

    async def _read_with_room(self, header: PullHeader) -> Slice:
        """Read again once the client has read what was sent: one pull at a time, so that no others take the room."""
        async with self.link.delivering:
            await self.link.wait_for_room()
            return await self._read(header)

    async def _read_by_position(self, header: PullHeader) -> Slice:
        number = header.queue_offset
        reader = self._take_reader(number)
        is_patient = bool(header.sys_flag & PullFlag.SUSPEND)
        try:
            if not reader.follows(number) or not (is_patient or reader.is_ready(number)):
                await self._check_bounds(header, may_wait=is_patient)
            return await reader.read(number, *_limits_of(header))
        finally:
            self._readers.append(reader)
            if self.state is PullState.CLOSED:
                spawn(self.close(), f"close of {self.key}")

    def _take_reader(self, number: int) -> NumberReader:
        """Return a reader that no other pull uses: one that goes on at this number if there is one."""
        index = next((index for index, each in enumerate(self._readers) if each.follows(number)), len(self._readers) - 1)
        return self._readers.pop(index) if self._readers else self._broker.open_reader(self.topic, self.key.queue)

    async def _check_bounds(self, header: PullHeader, *, may_wait: bool) -> None:
        """Raise MovedError for an offset outside of the queue, and TimeoutError at its end if the client does not wait."""
        self._first, self._next = await self._broker.bounds_of(self.topic, self.key.queue)
        offset = header.queue_offset
        if offset < self._first:
            raise MovedError(self._first)
        if offset > self._next:
            raise MovedError(self._next)
        if offset == self._next and not may_wait:
            raise TimeoutError

    # --- answers ----------------------------------------------------------------------------------------------------------

    def _answer(self, request: Command, found: Slice, tags: frozenset[str]) -> Command:
        """Return the answer with these messages, without those that have none of the tags."""
        self._next = max(self._next, found.next)
        units = (
            found.units if found.units is not None else self._broker.units_of(found.messages or (), self.topic, self.key.queue)
        )
        try:
            body, count = self._encode(units, found.numbers, tags)
        except RemoteProtocolError:
            body, count = self._encode_each(units, found.numbers, tags)
        self._broker.count_delivered(self.key.topic, count, len(body))
        if not count:
            return self._nothing(request, Status.PULL_RETRY_IMMEDIATELY, found.next)
        return request.answer(Status.SUCCESS, self._result(found.next), body)

    def _encode(self, units: Sequence[Unit], numbers: Sequence[int], tags: frozenset[str]) -> tuple[bytes, int]:
        return self._broker.encode(self.topic, self.key.queue, self.link.host, units, numbers, tags)

    def _encode_each(self, units: Sequence[Unit], numbers: Sequence[int], tags: frozenset[str]) -> tuple[bytes, int]:
        """Encode units one by one, without those that are damaged: they are dead letters."""
        pieces, total = [], 0
        for unit, number in zip(units, numbers, strict=True):
            try:
                body, count = self._encode([unit], [number], tags)
            except RemoteProtocolError as error:
                self._broker.quarantine(self.topic, self.key.queue, number, unit, str(error))
            else:
                pieces.append(body)
                total += count
        return b"".join(pieces), total

    def _nothing(self, request: Command, status: int, next_offset: int) -> Command:
        return request.answer(status, self._result(next_offset), remark="nothing was found")

    def _result(self, next_offset: int) -> dict[str, str]:
        return PullResult(0, next_offset, self._first, max(self._next, next_offset)).encode()

    @property
    def is_idle(self) -> bool:
        """True if the client has nothing here, and has processed all that it got: one that has not may pull again much later."""
        return self.state is PullState.FREE and (self.feed is None or self.feed.is_settled)

    # --- the lane ---------------------------------------------------------------------------------------------------------

    def _is_shared(self) -> bool:
        """Return True if the client is to get the messages of the group's lane."""
        return self._broker.is_shared(self.link, self.key.group, self.key.topic)

    def _is_by_position(self) -> bool:
        """Return True if the client is to get messages from a reader."""
        return not self._is_shared() and not self._broker.is_expected(self.link, self.key.group)

    def _find_feed(self) -> QueueFeed | None:
        return self._broker.feed_of(self.key.group, self.topic, self.key.queue) if self._is_shared() else None

    def on_lost(self) -> None:
        """Take note that the lane which has served this client belongs to another gateway now."""
        self.feed = None
        self.on_moved()

    def on_moved(self) -> None:
        """Take note that the client is to go on elsewhere in the queue: answer the pulls that wait, or wait for the next one."""
        self._moves += 1
        for limit in self._waiting:
            with suppress(RuntimeError):  # it is over already
                limit.reschedule(self._loop.time())
        if self.state in {PullState.LOST, PullState.CLOSED} or (self._waiting and self._can_move):
            return
        self.state = PullState.LOST
        self._lost_timer = self._loop.call_later(LOST_S if self._can_move else 0.0, self._start_telling)

    @property
    def _can_move(self) -> bool:
        """True if the client drops what it has of a queue when a pull is answered with PULL_OFFSET_MOVED."""
        return self.link.language not in LANGUAGES_WITHOUT_MOVE

    def _start_telling(self) -> None:
        spawn(self._tell_lost(), f"loss of {self.key}")

    async def _tell_lost(self) -> None:
        """Tell the client that the queue is lost: it drops what it has of it, and asks for the offset again."""
        if self.state is not PullState.LOST:
            return
        try:
            committed = await self._broker.committed_number(self.key.group, self.topic, self.key.queue)
        except MqbridgeError as error:
            log.info("the offset of group %s in a queue that was lost is not known: %s", self.key.group, error)
            committed = None
        if self.state is PullState.LOST:
            self._set_free()
            if committed is not None:
                tell_reset(self._broker, self.link, self.key.group, self.key.topic, {self.key.queue: committed})

    def _set_free(self) -> None:
        self.state = PullState.WAITING if self._waiting else PullState.FREE
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None

    async def close(self) -> None:
        """End what is kept for pulls."""
        self._set_free()
        self.state = PullState.CLOSED
        readers, self._readers = self._readers, []
        deadline = self._loop.time() + 1.0
        await asyncio.gather(*(reader.close(deadline) for reader in readers))


def tell_reset(broker: Broker, link: ServedConnection, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Tell a client to drop what it has of these queues, and to go on at these offsets."""
    queues = {Queue(topic, broker.name, queue): offset for queue, offset in offsets.items()}
    body = ResetOffsets(queues)
    data = body.encode_for_c() if link.language in LANGUAGES_WITHOUT_MOVE else body.encode()
    link.notify(Code.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetHeader(group, topic, timestamp=0), data)


def _limits_of(header: PullHeader) -> tuple[int, int]:
    size = DEFAULT_PULL_BYTES if header.max_msg_bytes is None else header.max_msg_bytes
    return min(max(1, header.max_msg_nums), MAX_PULL_MESSAGES), min(max(1, size), MAX_PULL_BYTES)


class Pulls:
    """Serves the pulls of all clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pulls: dict[ServedConnection, dict[PullKey, QueuePull]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look for pulls that are not used any more."""
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._drop_idle)

    def stop(self) -> None:
        """End that."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def serve(self, link: ServedConnection, request: Command) -> Served:
        """Serve PULL_MESSAGE and LITE_PULL_MESSAGE."""
        header = PullHeader.decode(request.ext)
        if request.body:  # it may wait for long, and so would the body
            raise CodedRefusal("a pull has no body", Status.MESSAGE_ILLEGAL)
        self._commit(link, header)
        tags = self._tags_of(link, header)
        known = self._pulls.get(link, {}).get(PullKey(header.consumer_group, header.topic, header.queue_id))
        if known is not None and known.state is not PullState.CLOSED:
            answer = known.serve_at_once(request, header, tags)
            if answer is not None:
                link.deliver(request, answer)
                return None
        return self._serve(link, request, header, tags)

    async def _serve(self, link: ServedConnection, request: Command, header: PullHeader, tags: frozenset[str]) -> None:
        key = PullKey(header.consumer_group, header.topic, header.queue_id)
        pulls = self._pulls.setdefault(link, {})
        pull = pulls.get(key)
        if pull is None or pull.state is PullState.CLOSED:
            async with limited(f"finding topic {header.topic}"):
                topic = await self._broker.readable_topic(header.topic)
            self._broker.check_queue(topic, header.queue_id)
            if len(pulls) >= MAX_QUEUES:
                raise CodedRefusal(f"a client pulls at most {MAX_QUEUES} queues", Status.SYSTEM_BUSY)
            if not link.alive:
                return
            has_filter = bool(header.sys_flag & PullFlag.SUBSCRIPTION)
            self._broker.clients.expect_heartbeat(link, key.group, has_filter=has_filter)
            pull = pulls.setdefault(key, QueuePull(self._broker, link, key, topic))
        try:
            answer = await pull.serve(request, header, tags)
        except ClusterError as error:
            if error.failure is Failure.FATAL and pulls.get(key) is pull:  # the topic may have been deleted
                del pulls[key]
                await pull.close()
            raise
        link.deliver(request, answer)

    def _commit(self, link: ServedConnection, header: PullHeader) -> None:
        if header.sys_flag & PullFlag.COMMIT_OFFSET and header.commit_offset >= 0:
            self._broker.commit_pulled(link, header.consumer_group, header.topic, header.queue_id, header.commit_offset)

    def _tags_of(self, link: ServedConnection, header: PullHeader) -> frozenset[str]:
        """Return the tags that the client wants; empty: all messages. Raises CodedRefusal for a filter that is not supported."""
        expression, kind = header.subscription, header.expression_type
        if not header.sys_flag & PullFlag.SUBSCRIPTION:
            group = self._broker.clients.consumers.get(header.consumer_group)
            if group is None:
                text = f"no member of group {header.consumer_group} has sent a heartbeat"
                raise CodedRefusal(text, Status.SUBSCRIPTION_NOT_EXIST)
            subscription = next(
                (each for member in group.at(link) for each in member.data.subscriptions if each.topic == header.topic), None
            ) or group.subscriptions.get(header.topic)
            if subscription is None:
                text = f"group {header.consumer_group} has not subscribed to topic {header.topic}"
                raise CodedRefusal(text, Status.SUBSCRIPTION_NOT_EXIST)
            expression, kind = subscription.expression, subscription.expression_type
        if kind == SQL92:
            raise CodedRefusal(NO_SQL, Status.SYSTEM_ERROR)
        return frozenset(split_expression(expression or "*"))

    def on_feed_changed(self, group: str, backing: str, partition: str, is_held: bool) -> None:
        """Tell the clients that a lane has served, if it is lost."""
        if is_held:
            return
        for pulls in list(self._pulls.values()):
            for key, pull in list(pulls.items()):
                is_its_own = key.group == group and pull.topic.backing == backing
                if is_its_own and pull.feed is not None and pull.topic.partitions.get(key.queue) == partition:
                    pull.on_lost()

    def all_of(self, group: str, topic: str) -> list[QueuePull]:
        """Return what clients pull of a topic for a group."""
        return [
            pull for pulls in self._pulls.values() for key, pull in pulls.items() if key.group == group and key.topic == topic
        ]

    def drop(self, link: ServedConnection) -> None:
        """End the pulls of a connection that has ended."""
        for pull in self._pulls.pop(link, {}).values():
            spawn(pull.close(), f"close of {pull.key}")

    def _drop_idle(self) -> None:
        oldest = asyncio.get_running_loop().time() - IDLE_S
        for pulls in self._pulls.values():
            for key, pull in list(pulls.items()):
                if pull.used_at < oldest and pull.is_idle:
                    del pulls[key]
                    spawn(pull.close(), f"close of {key}")
        self.start()
