"""A partition of a group, as a Broker sees it: at most one consumer owns it, and has at most one pack that is not confirmed.

    FREE      nobody owns it
    OPENING   it is being registered for a consumer
    OWNED     a consumer owns it; everything that it got is confirmed, or was rolled back
    OUT       the consumer has a pack: messages between `confirmed` and `read_end`

        register                      FREE -> OPENING -> OWNED; from OPENING back to FREE if it fails
        register (by its owner)       OWNED, OUT -> OPENING: what was not confirmed is rolled back
        (pack handed out)             OWNED -> OUT
        confirm                       OUT -> OWNED
        roll back                     OUT -> OWNED: the next get reads from `confirmed` again
        move                          OWNED, OUT -> OWNED: what was handed out before does not count any more
        unregister, (lease, lost)     OPENING, OWNED, OUT -> FREE; the first one confirms or rolls back

What this rests on: numbers ascend; all that is between two numbers was handed out before the second one is confirmed. Messages
that were rolled back are read again by position, because their lane is behind them; their packs may be cut at other messages, as
those of a real Broker may.
"""

import asyncio
import logging
from enum import Enum
from typing import NamedTuple, NoReturn

from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.numbered import Slice
from mqbridge.listener.queue_feed import OutOfReach, QueueFeed, QueueFeedState
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.server.broker import ServedBroker
from mqbridge.tubemq.server.lanes import GroupLanes, LaneStart, PartitionId
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

LEASE_S = 35.0
"""Time without a sign of the owner after which a partition is free: that of a shipped Broker; heartbeats come every 13 s."""
WAIT_S, CAUGHT_UP_WAIT_S = 0.3, 0.005
"""How long a get waits for messages while more are expected, and when all were read: clients then wait 400 ms by themselves, and
those with one thread for many partitions get nothing from the others while one waits."""
AGAIN_WAIT_S = 2.5
"""How long a get waits for what was rolled back: it is stored, but its reader may have to be opened first, and one that is given
up begins anew at the next get. Shorter than the shortest time that clients wait for a response."""
MAX_PACK_MESSAGES, MAX_PACK_BYTES = 5000, 512 << 10
"""Limits of a pack: those of a Broker. One message is larger than that, if it was stored so."""
FRESH_S = 1.0
"""How long the end of a partition is used that was asked for: it is what clients show as the maximum."""


class PartitionOwnership(Enum):
    """The state of a partition, see the module."""

    FREE = "free"
    OPENING = "opening"
    OWNED = "owned"
    OUT = "out"


class ServedPack(NamedTuple):
    """What a get hands out: the messages, the number at which it began to read, and whether they were handed out before."""

    messages: Slice
    start: int
    is_again: bool


class ServedPartition:
    """See the module."""

    def __init__(self, broker: ServedBroker, lanes: GroupLanes, group: str, topic: ListenedTopic, index: int) -> None:
        self.state = PartitionOwnership.FREE
        self.id = PartitionId(topic.name, index)
        self.topic = topic
        self.owner: str | None = None
        """Id of the consumer that owns it."""
        self.offered_to: str | None = None
        """Id of the consumer that the Master has told to register it."""
        self.types: frozenset[str] = frozenset()
        """Types of the messages that the owner wants; none: all."""
        self.renewed_at = 0.0
        """Loop time of the last sign of the owner."""
        self.confirmed = self.read_end = 0
        """The group has consumed what is before `confirmed`; the owner has what is before `read_end`."""
        self.feed: QueueFeed | None = None
        self._broker, self._lanes, self._group, self._index = broker, lanes, group, index
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.Lock()
        """Held by the get that reads: a client has one at a time, and another one if it has given one up."""
        self._replay: NumberReader | None = None
        """Reads again what was rolled back."""
        self._end, self._end_at = 0, 0.0
        """The number after the last message at the last look, and its loop time."""
        self._asking_end: asyncio.Task[None] | None = None
        self._handed_out = 0
        """The number before which everything was handed out to some consumer."""

    # --- owners -----------------------------------------------------------------------------------------------------------

    @property
    def is_free(self) -> bool:
        """True if nobody owns it, and it was offered to nobody."""
        return self.state is PartitionOwnership.FREE and self.offered_to is None

    @property
    def is_settled(self) -> bool:
        """True if no consumer has messages that are not confirmed."""
        return self.state is not PartitionOwnership.OUT

    def check_owner(self, client_id: str, code: int = codes.NO_NODE) -> None:
        """Take note of a sign of the owner. Raises CodedRefusal if this consumer is not the owner: with `code` if nobody is."""
        if self.owner == client_id and self.state is not PartitionOwnership.OPENING and self._is_here:
            self.renewed_at = self._loop.time()
        elif self.owner is None or self.owner == client_id:
            raise CodedRefusal(f"partition {self._name} is not registered for this consumer", code)
        else:
            raise CodedRefusal(f"another consumer has partition {self._name}", max(code, codes.DUPLICATE_PARTITION))

    @property
    def _name(self) -> str:
        return f"{self.id.topic}:{self.id.partition} of group {self._group}"

    @property
    def _is_here(self) -> bool:
        """True if this gateway has the partition, perhaps not for long."""
        return self.feed is not None and self.feed.is_held

    def _check_may_register(self, client_id: str) -> None:
        if self.owner not in (None, client_id):
            raise CodedRefusal(f"another consumer has partition {self._name}", codes.PARTITION_OCCUPIED)

    async def register(self, client_id: str, topic: ListenedTopic, start: LaneStart, types: frozenset[str]) -> None:
        """Give the partition to a consumer. Raises CodedRefusal if another one has it, ClusterError."""
        self._check_may_register(client_id)
        self._roll_back()
        self.state, self.owner = PartitionOwnership.OPENING, client_id
        self.renewed_at = self._loop.time()
        try:
            async with self._reading:  # a get of an earlier owner may still run, or another registration
                await self._open(client_id, topic, start, types)
        except BaseException:
            if self.owner == client_id and self.state is PartitionOwnership.OPENING:
                self.release()
            raise

    async def _open(self, client_id: str, topic: ListenedTopic, start: LaneStart, types: frozenset[str]) -> None:
        if self.owner != client_id:
            self._refuse_released()
        self.state, self.topic = PartitionOwnership.OPENING, topic
        await self._close_feed()
        feed, confirmed = await self._lanes.open(topic, self._index, start)
        self.feed = feed  # whoever releases the partition from now on closes it
        if self.owner != client_id or not feed.is_held:
            self._refuse_released()
        self.types, self.confirmed, self.read_end = types, confirmed, confirmed
        self._handed_out = max(confirmed, feed.next or 0)
        await self._ask_end()
        if self.owner != client_id:
            self._refuse_released()
        self.state, self.renewed_at = PartitionOwnership.OWNED, self._loop.time()
        if self.offered_to == client_id:
            self.offered_to = None

    def _refuse_released(self) -> NoReturn:
        raise CodedRefusal(f"partition {self._name} was released meanwhile", codes.PARTITION_OCCUPIED)

    def unregister(self, client_id: str, *, is_consumed: bool) -> None:
        """End the ownership of a consumer; its pack is confirmed or rolled back. Raises CodedRefusal if it is not the owner."""
        self.check_owner(client_id)
        if is_consumed:
            self.confirm()
        self.release()

    def release(self) -> None:
        """End the ownership: what is not confirmed is handed out again."""
        if self.state is PartitionOwnership.FREE:
            return
        self._roll_back()
        self.state, self.owner = PartitionOwnership.FREE, None
        spawn(self._close(), f"close of {self._name}")

    async def _close(self) -> None:
        async with self._reading:
            if self.state is PartitionOwnership.FREE:  # otherwise it was registered again, which has closed it
                await self._close_feed()

    async def _close_feed(self) -> None:
        feed, self.feed = self.feed, None
        replay, self._replay = self._replay, None
        if replay is not None:
            await replay.close()
        if feed is not None:
            await self._lanes.close(feed)

    # --- packs ------------------------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Confirm what the owner has."""
        if self.state is not PartitionOwnership.OUT or self.feed is None:
            return
        self.state, self.confirmed = PartitionOwnership.OWNED, self.read_end
        self._lanes.commit(self.topic, self._index, self.feed, self.confirmed)

    def roll_back(self) -> None:
        """Take back what the owner has: it gets it again."""
        self._roll_back()

    def _roll_back(self) -> None:
        if self.state is PartitionOwnership.OUT:
            self.state, self.read_end = PartitionOwnership.OWNED, self.confirmed
            if self.feed is not None:
                self.feed.give_back()

    async def move(self, number: int) -> bool:
        """Move the group to a number; what was handed out before does not count any more. Returns False if nobody owns it.

        Raises CodedRefusal if the partition moves to another gateway, ClusterError: then nothing changes, except that the pack of
        the owner is rolled back. Not to be cancelled: the caller shields it.
        """
        async with self._reading:  # a registration that is under way, or a get
            feed = self.feed
            if self.state is PartitionOwnership.FREE or feed is None:
                return False
            self._roll_back()  # from here on, a confirmation of the owner has no effect
            try:
                await self._lanes.move(self.topic, self._index, feed, number)
            except LaneRevoked as error:
                raise CodedRefusal(f"partition {self._name} moves to another gateway", codes.NO_NODE) from error
            self.confirmed = self.read_end = self._handed_out = number
            return True

    async def get(self, client_id: str, *, keeps_pack: bool) -> ServedPack | None:
        """Return the next pack, which counts as handed out with `hand_out`; None if there is none now.

        With `keeps_pack`, the messages behind the present pack are read; otherwise those behind what is confirmed. Raises
        CodedRefusal if the consumer is not the owner, or loses the partition meanwhile, and ClusterError.
        """
        async with self._reading:
            self.check_owner(client_id)
            feed = self.feed
            assert feed is not None  # noqa: S101 - `check_owner`
            if feed.state is not QueueFeedState.HELD:  # it is about to be given up: everything is confirmed now
                raise CodedRefusal(f"partition {self._name} moves to another gateway", codes.NO_NODE)
            start = self.read_end if keeps_pack else self.confirmed
            is_again = start < self._handed_out
            try:
                found = await self._read_soon(feed, start)
            except LaneRevoked as error:
                raise CodedRefusal(f"partition {self._name} moves to another gateway", codes.NO_NODE) from error
            is_dropped = found is None or start != (self.read_end if keeps_pack else self.confirmed)
            if is_dropped or self.owner != client_id:
                self.drop_pack()
            self.check_owner(client_id)
            if found is None or is_dropped:
                return None  # what is before it may have been rolled back meanwhile, and is not to be confirmed with it
            return ServedPack(found, start, is_again)

    def drop_pack(self) -> None:
        """Take note that nobody gets the pack that `get` has read: it is read again."""
        if self.state is not PartitionOwnership.OUT and self.feed is not None:
            self.feed.give_back()

    async def _read_soon(self, feed: QueueFeed, start: int) -> Slice | None:
        """Read; None if there is nothing at the end, or for WAIT_S. What was rolled back is waited for longer."""
        if feed.next is not None and start < feed.next:
            try:
                async with asyncio.timeout(AGAIN_WAIT_S):
                    return await self._read(feed, start)
            except TimeoutError:
                return None
        for wait_s in (CAUGHT_UP_WAIT_S, WAIT_S):
            try:
                async with asyncio.timeout(wait_s):
                    return await self._read(feed, start)
            except TimeoutError:
                if await feed.confirm_caught_up():
                    return None
        return None

    async def _read(self, feed: QueueFeed, start: int) -> Slice:
        """Read from the feed, or again what was rolled back, up to where the feed is."""
        if feed.next is None or start >= feed.next:
            if self._replay is not None:
                replay, self._replay = self._replay, None
                await replay.close()
            try:
                return await feed.read(start, MAX_PACK_MESSAGES, MAX_PACK_BYTES, may_skip=False)
            except OutOfReach:
                if feed.next is None or start >= feed.next:
                    raise
        if self._replay is None:
            self._replay = self._broker.open_reader(self.topic, self._index)
        found = await self._replay.read(start, MAX_PACK_MESSAGES, MAX_PACK_BYTES)
        return _before(found, feed.next) if feed.next is not None else found

    def hand_out(self, pack: ServedPack) -> None:
        """Take note that the owner gets a pack. One without messages is confirmed at once, if everything before it is."""
        was_out = self.state is PartitionOwnership.OUT
        self.state, self.read_end = PartitionOwnership.OUT, pack.messages.next
        if pack.is_again and self.feed is not None:
            self.feed.claim()
        self._handed_out = max(self._handed_out, self.read_end)
        self._end = max(self._end, self.read_end)
        if not was_out and not pack.messages.numbers:
            self.confirm()

    # --- the end ----------------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The number after the last message, as it was known a moment ago."""
        if self._loop.time() - self._end_at > FRESH_S and self._asking_end is None:
            self._asking_end = spawn(self._refresh_end(), f"end of {self._name}")
        return max(self._end, self.read_end)

    async def _refresh_end(self) -> None:
        try:
            await self._ask_end()
        except ClusterError as error:
            log.debug("the end of %s is not known now: %s", self._name, error)
        finally:
            self._asking_end = None

    async def _ask_end(self) -> None:
        _, self._end = await self._broker.bounds_of(self.topic, self._index)
        self._end_at = self._loop.time()


def _before(found: Slice, number: int) -> Slice:
    """Return the messages before a number."""
    if found.next <= number:
        return found
    count = sum(each < number for each in found.numbers)
    units = None if found.units is None else found.units[:count]
    messages = None if found.messages is None else found.messages[:count]
    return Slice(found.numbers[:count], number, units, messages)
