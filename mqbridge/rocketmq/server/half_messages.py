"""The half messages of one producer group: messages of transactions that are neither committed nor rolled back.

They wait in a topic of the backing that all gateways of the listener share, one for each producer group. The same topic gets a
note when a transaction has ended. One of the gateways that have a producer of the group reads it, and asks the producers about
messages that wait for long.

A transaction is identified by the id of its message and the position of its half message: an application may send the same
message object, and so the same id, in a second transaction. A client that got no answer sends a message again, too: then there
are two half messages, of which it ends one, and is asked about the other. If it commits both, the message is delivered twice, as
by brokers.

    OPEN     the half message is stored
    UNNOTED  committed (the message is stored in its own topic) or rolled back; the note of that is not stored yet
    ENDED    there is a note

        (stored)             -> OPEN
        end                  OPEN -> UNNOTED
        (checked too often)  OPEN -> UNNOTED, as a dead letter
        end, (later)         UNNOTED -> ENDED

The message is stored in its own topic before the note: a crash between the two makes the check commit it once more. What is
before the oldest open half message is acknowledged, so that the next gateway reads the rest.

What this rests on: a message has the same position whenever it is read, at each gateway, and the positions of the topic's one
partition ascend in the order in which messages are stored. So it is with offsets, and only systems whose positions are offsets
(the log and RocketMQ) can be the backing of such a listener.
"""

import asyncio
import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from mqbridge.adapter.inbound import AnnouncesRelease, Inbound, InboundLane
from mqbridge.errors import ClusterError, GapError, LaneRevoked, MqbridgeError
from mqbridge.listener.internal_topic import InternalTopic
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.message import Batch, Message, Position, Unit
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

HALF, ENDED = "mqbridge.half", "mqbridge.half.ended"
"""Properties of a half message (JSON, the fields of `PreparedMessage`), and of the note that one has ended (`HalfKey`)."""
FIRST_CHECK_S, CHECK_PAUSE_S, MAX_CHECKS = 6.0, 30.0, 15
"""Age at which producers are asked first, time between two questions, and their maximum number: the defaults of brokers."""
LOOK_S = 1.0
"""Time between two looks for half messages that wait for long."""
MAX_ENDED = 100_000
"""Number of transactions whose end is remembered, so that the same end, told twice, has one effect; and maximum number of those
that wait for their note: then no more transactions are ended."""
MAX_WAITING, MAX_WAITING_BYTES = 100_000, 16 << 20
"""Number of messages that are read and not acknowledged, and bytes of those whose contents the cluster needs to acknowledge them:
then nothing more is read until the oldest open half message ends."""
READ_AGAIN_S, NOTE_AGAIN_S = 5.0, 5.0
"""Pauses before the topic is read again that could not be read, and before notes are stored that could not be stored; the latter
grows."""
LAST_NOTES_S = 1.0
"""Time in which such notes are stored when the gateway ends."""


class PreparedMessage(NamedTuple):
    """Where a half message goes when it is committed.

    id         its unique id
    topic      the topic, as clients name it
    queue      the queue
    group      the producer group
    stored_ms  when it was stored (ms since the epoch)
    immune_s   time in which the producer does not want to be asked; 0: the default
    """

    id: str
    topic: str
    queue: int
    group: str
    stored_ms: int
    immune_s: int = 0


class HalfKey(NamedTuple):
    """What identifies a transaction: the id of its message, and the position of its half message."""

    id: str
    position: Position


class Outcome(Enum):
    """How a transaction ends."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    DEAD = "dead"
    """Nobody has said how it ends."""


class OpenHalf:
    """A half message that was read, and how often producers were asked about it."""

    __slots__ = ("checks", "half", "next_check", "position")

    def __init__(self, half: PreparedMessage, position: Position) -> None:
        self.half, self.position = half, position
        self.checks = 0
        self.next_check = half.stored_ms / 1000 + (half.immune_s or FIRST_CHECK_S)
        """Time (s since the epoch) at which producers are asked next."""

    @property
    def key(self) -> HalfKey:
        """What identifies its transaction."""
        return HalfKey(self.half.id, self.position)


def half_message(half: PreparedMessage, unit: Unit) -> Message:
    """Return the message that is stored for a half message."""
    return Message(unit.data, ((HALF, json.dumps(half)),))


def read_half(message: Message) -> tuple[PreparedMessage, Unit] | None:
    """Return what `half_message` got; None if the message is none."""
    values = message.property_values(HALF)
    if message.defect is not None or not values:
        return None
    try:
        half = PreparedMessage(*json.loads(values[-1]))
        is_valid = all(isinstance(each, str) for each in (half.id, half.topic, half.group)) and all(
            type(each) is int and 0 <= each < 1 << 63 for each in (half.queue, half.stored_ms, half.immune_s)
        )
    except (TypeError, ValueError, RecursionError):
        return None
    return (half, Unit(message.payload or b"", 1, None)) if is_valid else None


def ended_note(key: HalfKey) -> Message:
    """Return the note that a transaction has ended."""
    return Message(b"", ((ENDED, json.dumps(key)),))


def read_note(text: str) -> HalfKey | None:
    """Return what `ended_note` got, from the property of the note; None if it is no such text."""
    try:
        half_id, position = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    is_position = isinstance(position, list) and position and all(type(each) is int and each >= 0 for each in position)
    return HalfKey(half_id, tuple(position)) if isinstance(half_id, str) and is_position else None


async def find_half(
    topic: InternalTopic, position: Position, unique_id: str | None, group: str
) -> tuple[PreparedMessage, Unit] | None:
    """Return the half message of a group at a position; None if there is none, or if it has another id. Raises ClusterError."""
    message = await topic.read(position)
    found = None if message is None else read_half(message)
    return None if found is None or found[0].group != group or unique_id not in (None, found[0].id) else found


Check = Callable[[OpenHalf, Unit], bool]
"""Asks a producer about a half message; returns False if there is none to ask."""
Commit = Callable[[PreparedMessage, Unit], Awaitable[None]]
"""Stores a message in its own topic. Raises RequestRefused, ClusterError."""


class HalfMessages:
    """See the module. Call `close` at the end."""

    def __init__(self, topic: InternalTopic, check: Check, commit: Commit, bury: Commit) -> None:
        """`bury` stores a message as a dead letter whose transaction nobody has ended."""
        self._topic, self._check, self._commit, self._bury = topic, check, commit, bury
        self._open: dict[HalfKey, OpenHalf] = {}
        """The open half messages that this gateway has read, the oldest first."""
        self._ended: OrderedDict[HalfKey, None] = OrderedDict()
        """Transactions that are ENDED, the oldest first."""
        self._unnoted: dict[HalfKey, None] = {}
        """Transactions that are UNNOTED, the oldest first."""
        self._noting: asyncio.Task[None] | None = None
        """The task that stores the notes that could not be stored."""
        self._ending = KeyedLocks[HalfKey]()
        """Held while a transaction ends."""
        self._batches: deque[Batch] = deque()
        """Batches of the lane that are not acknowledged; without their contents, if the cluster does not need these."""
        self._waiting = self._waiting_bytes = 0
        """Number of their messages, and the bytes of the contents that are kept."""
        self._has_room = asyncio.Event()
        """Set when a batch is acknowledged: so it is when the last open half message has ended."""
        self._is_stop_logged = False
        self._lane: InboundLane | None = None
        self._is_following = self._is_closed = False
        self._users = 0
        """Number of blocks of `in_use`."""
        self._unused = asyncio.Event()
        """Set while there are none."""
        self._unused.set()
        self._used_until = 0.0
        """When the last of these blocks has ended (loop time)."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the half messages: they are not idle in this block."""
        self._users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            self._used_until = asyncio.get_running_loop().time()
            if not self._users:
                self._unused.set()

    @property
    def idle_s(self) -> float:
        """For how long nobody uses them; 0 while somebody does, and while notes are missing."""
        return 0.0 if self._users or self._unnoted else asyncio.get_running_loop().time() - self._used_until

    @property
    def is_followed(self) -> bool:
        """True if this gateway reads them whenever no other does."""
        return self._is_following

    @property
    def topic(self) -> InternalTopic:
        """The topic in which they wait."""
        return self._topic

    async def add(self, half: PreparedMessage, unit: Unit) -> Position:
        """Store a half message, and return its position. Raises ClusterError."""
        (position,) = await self._topic.append([half_message(half, unit)])
        return position

    # --- the end of transactions ------------------------------------------------------------------------------------------

    async def end(self, half: PreparedMessage, unit: Unit, position: Position, outcome: Outcome) -> None:
        """End the transaction of the half message at a position, see `find_half`.

        Raises RequestRefused, ClusterError: then it stays open, or it has ended and only the note is missing.
        """
        key = HalfKey(half.id, position)
        async with self._ending.hold(key):
            if key in self._ended:
                return
            if key not in self._unnoted:
                if len(self._unnoted) >= MAX_ENDED:
                    raise ClusterError(f"the end of {MAX_ENDED:,} transactions cannot be noted in {self._topic.name}")
                if outcome is Outcome.COMMIT:
                    await self._commit(half, unit)
                elif outcome is Outcome.DEAD:
                    await self._bury(half, unit)
                self._note_ended(key)
            await self._store_note(key)

    def _note_ended(self, key: HalfKey) -> None:
        """Take note that a transaction has ended.

        From now on its half message is not open here, whether there is a note or not, and may be acknowledged. If this gateway
        has the lane and acknowledges it, no gateway reads it again, and the note is not needed. It is needed if an earlier half
        message holds the acknowledgement back, if another gateway has the lane, and if the lane is lost before the cluster has
        stored the acknowledgement: then it is open at the gateway that reads it, until that one reads the note. So the note is
        stored in any case.
        """
        self._unnoted[key] = None
        self._open.pop(key, None)
        self._acknowledge()

    async def _store_note(self, key: HalfKey) -> None:
        """Store the note of a transaction; if that fails, it is stored later. The caller holds its lock. Raises ClusterError."""
        try:
            await self._topic.append([ended_note(key)])
        except BaseException:  # also if the caller gives up
            if not self._is_closed and (self._noting is None or self._noting.done()):
                self._noting = spawn(self._store_notes_later(), f"notes of {self._topic.name}")
            raise
        self._unnoted.pop(key, None)
        self._remember_ended(key)

    async def _store_notes_later(self) -> None:
        pauses = Backoff(NOTE_AGAIN_S, 12 * NOTE_AGAIN_S)
        while self._unnoted:
            await asyncio.sleep(pauses.delay())
            try:
                await self._store_notes()
            except MqbridgeError as error:
                log.warning(
                    "the end of %d transactions is not noted in %s, which is tried again: %s",
                    len(self._unnoted),
                    self._topic.name,
                    error,
                )

    async def _store_notes(self) -> None:
        """Store the notes that are missing. Raises ClusterError."""
        for key in list(self._unnoted):
            async with self._ending.hold(key):
                if key in self._unnoted:
                    await self._store_note(key)

    def _remember_ended(self, key: HalfKey) -> None:
        self._ended[key] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    # --- reading ----------------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Read what waits, and ask producers, as long as no other gateway does."""
        if not self._is_following:
            self._is_following = True
            self._topic.follow(self._run_lane)

    async def _run_lane(self, lane: InboundLane, inbound: Inbound) -> None:  # noqa: ARG002 - as `RunLane` is called
        self._forget_read()
        self._lane = lane
        looking = spawn(self._look_again_and_again(), f"transactions of {self._topic.name}")
        ending = spawn((lane.releasing if isinstance(lane, AnnouncesRelease) else lane.revoked).wait(), "release")
        reading = spawn(self._read(lane), f"half messages of {self._topic.name}")
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._lane is lane:  # the next one may be here already
                self._lane = None
                self._forget_read()
            await cancel(looking, ending, reading)

    def _forget_read(self) -> None:
        """Forget what was read of a lane: the next one delivers again what is not acknowledged."""
        self._open.clear()
        self._batches.clear()
        self._waiting = self._waiting_bytes = 0
        self._has_room.set()

    async def _read(self, lane: InboundLane) -> None:
        try:
            while True:
                await self._wait_for_room()
                try:
                    batch = await lane.receive()
                except GapError as gap:
                    if gap.resume is None:
                        raise ClusterError(str(gap)) from gap
                    log.warning("half messages of %s are lost: %s", self._topic.name, gap)
                    await self._wait_none_open()
                    await lane.seek(gap.resume)
                    continue
                if self._lane is not lane:
                    return
                self._take(batch.messages)
                self._keep(batch)
        except LaneRevoked:
            return
        except MqbridgeError as error:
            log.warning("half messages of %s are not read now, which is tried again: %s", self._topic.name, error)
            await asyncio.sleep(READ_AGAIN_S)
            self._topic.read_again(str(error))

    @property
    def _is_full(self) -> bool:
        """True if nothing more is read until the oldest open half message ends."""
        return self._waiting >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES

    async def _wait_for_room(self) -> None:
        while self._is_full:
            if not self._is_stop_logged:
                self._is_stop_logged = True
                oldest = next(iter(self._open.values()))
                log.warning(
                    "%d half messages and notes of group %s wait behind the oldest open one, of transaction %s: no more are read "
                    "until it has ended, or was checked %d times",
                    self._waiting,
                    oldest.half.group,
                    oldest.half.id,
                    MAX_CHECKS,
                )
            self._has_room.clear()
            await self._has_room.wait()

    async def _wait_none_open(self) -> None:
        """Wait until all half messages before a gap have ended, or are checked too often: a seek acknowledges them."""
        while self._open:
            self._has_room.clear()
            await self._has_room.wait()

    def _keep(self, batch: Batch) -> None:
        """Keep a batch whose messages were taken until it is acknowledged."""
        self._batches.append(batch)
        self._waiting += batch.count
        if self._needs_contents(batch):
            batch.release_messages()
            self._waiting_bytes += batch.held_bytes
        else:
            batch.drop_contents()
        self._acknowledge()

    def _needs_contents(self, batch: Batch) -> bool:
        return self._topic.needs_contents and not batch.messages_replace_data

    def _take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if notes := message.property_values(ENDED):
                self._take_note(notes[-1])
            elif (found := read_half(message)) is not None:
                self._take_half(OpenHalf(found[0], message.position))
            else:
                log.warning("a message in %s is no half message, and is skipped", self._topic.name)

    def _take_note(self, text: str) -> None:
        key = read_note(text)
        if key is None:
            log.warning("a note in %s cannot be read, and is skipped: %.200r", self._topic.name, text)
            return
        self._unnoted.pop(key, None)
        self._remember_ended(key)
        self._open.pop(key, None)

    def _take_half(self, waiting: OpenHalf) -> None:
        if waiting.key not in self._ended and waiting.key not in self._unnoted:
            self._open.setdefault(waiting.key, waiting)

    def _acknowledge(self) -> None:
        """Acknowledge everything before the oldest open half message."""
        lane = self._lane
        if lane is None:
            return
        oldest = next(iter(self._open.values()), None)
        while self._batches and (oldest is None or self._batches[0].next <= oldest.position):
            batch = self._batches.popleft()
            self._waiting -= batch.count
            if self._needs_contents(batch):
                self._waiting_bytes -= batch.held_bytes
            lane.acknowledge(batch)
            self._has_room.set()
        if self._waiting <= MAX_WAITING // 2 and self._waiting_bytes <= MAX_WAITING_BYTES // 2:
            self._is_stop_logged = False

    # --- checks -----------------------------------------------------------------------------------------------------------

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.time()
            for waiting in self._due(now):
                if self._open.get(waiting.key) is waiting:  # it may have ended meanwhile
                    await self._ask(waiting, now)

    def _due(self, now: float) -> list[OpenHalf]:
        """Return the half messages about which producers are asked now.

        While reading is stopped, these are the oldest one and those in the older half of what was read. The others may have ended
        at another gateway, with notes that are not read yet: a producer that is asked would have them committed once more.
        """
        due = [each for each in self._open.values() if each.next_check <= now]
        if due and self._is_full:
            middle, oldest = self._batches[len(self._batches) // 2].first, next(iter(self._open.values()))
            due = [each for each in due if each is oldest or each.position < middle]
        return due

    async def _ask(self, waiting: OpenHalf, now: float) -> None:
        """Ask a producer how a transaction ends, or end it if that was done too often."""
        waiting.next_check = now + CHECK_PAUSE_S
        try:
            message = await self._topic.read(waiting.position)
            found = None if message is None else read_half(message)
            if found is None:
                log.error(
                    "the half message of transaction %s of group %s was deleted before the transaction ended",
                    waiting.half.id,
                    waiting.half.group,
                )
                self._open.pop(waiting.key, None)
                self._acknowledge()
            elif waiting.checks >= MAX_CHECKS:
                log.error(
                    "transaction %s of group %s was not ended after %d checks", waiting.half.id, waiting.half.group, MAX_CHECKS
                )
                await self.end(*found, waiting.position, Outcome.DEAD)
            elif self._check(waiting, found[1]):
                waiting.checks += 1
        except MqbridgeError as error:
            log.warning("transaction %s of group %s cannot be checked now: %s", waiting.half.id, waiting.half.group, error)
        except Exception:  # the others are checked all the same
            log.exception("transaction %s of group %s cannot be checked now", waiting.half.id, waiting.half.group)

    async def close(self, deadline: float | None = None) -> None:
        """End, when nobody uses them any more or at the deadline; what waits stays stored."""
        self._is_following = False
        try:
            async with asyncio.timeout_at(deadline):
                await self._unused.wait()
        except TimeoutError:
            log.info("half messages of %s are closed while they are used", self._topic.name)
        self._is_closed = True
        await cancel(self._noting)
        await self._store_last_notes(deadline)
        await self._topic.close(deadline)

    async def _store_last_notes(self, deadline: float | None) -> None:
        until = asyncio.get_running_loop().time() + LAST_NOTES_S
        try:
            async with asyncio.timeout_at(until if deadline is None else min(until, deadline)):
                await self._store_notes()
        except (TimeoutError, MqbridgeError) as error:
            log.warning(
                "the end of %d transactions is not noted in %s, and they may be committed once more: %s",
                len(self._unnoted),
                self._topic.name,
                str(error) or "there was no time",
            )
