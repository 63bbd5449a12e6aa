"""Definitions, such as schemas, kept in a topic of the backing cluster, so that every gateway over the cluster knows them.

The topic is made with the first definition. It is read whole at the start, and followed from then on. Each record says one thing
again and again: a definition, or that definitions are deleted. Records are idempotent: only what they say counts, not where they
stand. So they can be published again before the retention of the topic takes them, by any gateway that knows them.

A record is a line of JSON, and after it the definition as it is:

    topic          the topic of clients that it belongs to
    version        the version of the definition, in hexadecimal digits; not there: all versions of the topic
    registered_ms  when it was registered, or deleted (ms since the epoch): this orders the versions of a topic
    published_ms   when this record was published
    type           the type of the definition, a number of the clients' protocol; not there: it is deleted
    properties     pairs of text that belong to the definition

A deletion counts for what was registered until then, so that a record of it which is published late changes nothing.

    CLOSED     nothing is read; before `start`, and after `close`
    WAITING    there is no topic: nobody has registered anything
    READING    the topic is followed; after a failure it is opened again

        start             CLOSED -> WAITING, READING
        (topic found)     WAITING -> READING
        (topic deleted)   READING -> WAITING
        close             WAITING, READING -> CLOSED
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from time import time
from typing import Any, NamedTuple

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, GapError, LocalProtocolError, RefusalReason, RequestRefused, RequestTimeout
from mqbridge.message import Batch, Message, Pair, Position, Share
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

DEFINITIONS_TOPIC = "mqbridge-schemas"
"""Name of the topic. Where the system refuses it, its escaped form, see `definitions_topic`."""
REPUBLISH_AFTER_S = 12 * 3600.0
"""Age at which a record is published again: a fraction of the time for which systems keep messages by default (2 to 7 days)."""
REPUBLISH_SPREAD = 1.25
"""Gateways wait up to this factor longer, each another time: the first one publishes, and the others see that."""
CHECK_S = 600.0
"""Time between two checks for records that have to be published again, or that are gone already."""
FORGET_DELETIONS_S = 14 * 86_400.0
"""How long deletions are known and published again. A gateway that lagged may have published what is deleted once more."""
REQUEST_S = 10.0
"""Deadline of one request to the cluster."""
CATCH_UP_S = 15.0
"""Maximum time until everything that was published before a request of a client is read."""
START_S = 60.0
"""Maximum time to read the topic at the start."""
CREATE_S = 20.0
"""Maximum time until a topic that was created is seen: some systems show it at all servers only after a while."""
READ_BYTES = 1 << 20
"""Maximum bytes that the reader of the topic reads ahead."""
PUBLISHED_AT_ONCE = 50
"""Maximum number of records that one send publishes again."""

MAX_DEFINITION_BYTES = 256 << 10
"""Maximum size of a definition with its properties and the name of its topic."""
MAX_VERSIONS = 500
"""Maximum number of versions of a topic."""
MAX_TOPICS = 10_000
"""Maximum number of topics with definitions."""
MAX_TOTAL_BYTES = 64 << 20
"""Maximum size of all definitions that are kept in memory."""
MAX_DELETIONS = 10_000
"""Maximum number of deletions that are known; the oldest ones are forgotten."""


class InvalidRecord(ValueError):
    """A message of the topic that is no record."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of the definition that a topic of clients has; see the module for the fields."""

    topic: str
    version: bytes
    registered_ms: int
    type: int
    data: bytes
    properties: tuple[Pair, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it counts for the limits."""
        return len(self.data) + len(self.topic) + sum(len(name) + len(value) for name, value in self.properties)


class Deletion(NamedTuple):
    """The deletion of one version of a topic, or of all of them (`version` is empty), that were registered until then."""

    topic: str
    version: bytes
    registered_ms: int


class PublishedRecord(NamedTuple):
    """The newest record that says something: when it was published, and its position; () if that is not known."""

    published_ms: int
    position: Position


Key = tuple[str, bytes]
"""Topic and version; all versions of the topic are ("topic", b"")."""


def definitions_topic(cluster: Cluster, name: str = DEFINITIONS_TOPIC) -> str:
    """Return the name of the topic in a cluster."""
    rule = cluster.capabilities.topic_name
    return rule.escape(name) if rule.problem(name) else name


def encode_record(said: Definition | Deletion, published_ms: int) -> bytes:
    """Return the payload of a record."""
    header: dict[str, Any] = {"topic": said.topic, "registered_ms": said.registered_ms, "published_ms": published_ms}
    if said.version:
        header["version"] = said.version.hex()
    if isinstance(said, Definition):
        header |= {"type": said.type, "properties": said.properties}
    return json.dumps(header).encode() + b"\n" + (said.data if isinstance(said, Definition) else b"")


def decode_record(payload: bytes) -> tuple[Definition | Deletion, int]:
    """Return what a record says, and when it was published. Raises InvalidRecord if it is none."""
    line, newline, data = payload.partition(b"\n")
    if not newline:
        raise InvalidRecord("a record without a line of JSON")
    try:
        header = json.loads(line)
        topic, registered_ms, published_ms = str(header["topic"]), int(header["registered_ms"]), int(header["published_ms"])
        version = bytes.fromhex(header.get("version", ""))
        type_ = header.get("type")
        properties = tuple((str(name), str(value)) for name, value in header.get("properties", ()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRecord(f"no record: {error!r}") from error
    if type_ is None:
        return Deletion(topic, version, registered_ms), published_ms
    if not version or not isinstance(type_, int):
        raise InvalidRecord("a definition without version or type")
    return Definition(topic, version, registered_ms, type_, data, properties), published_ms


class DefinitionTable:
    """What the records that were read say; without limits of time or of a cluster."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[bytes, Definition]] = {}
        """The versions of each topic, in the order in which they were read first."""
        self._deletions: dict[Key, Deletion] = {}
        self._published: dict[Key, PublishedRecord] = {}
        self.total_bytes = 0

    def versions(self, topic: str) -> Sequence[Definition]:
        """Return the versions of a topic, in the order in which they appeared."""
        found = self._topics.get(topic, {})
        return sorted(found.values(), key=lambda definition: (definition.registered_ms, definition.version))

    def read_before(self, topic: str, version: bytes) -> Sequence[Definition]:
        """Return the versions of a topic that were read before this one, or all of them if this one is not known."""
        return list(takewhile(lambda each: each.version != version, self._topics.get(topic, {}).values()))

    def find(self, topic: str, version: bytes) -> Definition | None:
        """Return a version of a topic."""
        return self._topics.get(topic, {}).get(version)

    def next_ms(self, topic: str, now_ms: int) -> int:
        """Return the time at which a new version is registered: behind all that is known of the topic."""
        known = [each.registered_ms for each in self._topics.get(topic, {}).values()]
        known += [each.registered_ms for each in self._deletions.values() if each.topic == topic]
        return max([now_ms, *(ms + 1 for ms in known)])

    def deletion(self, key: Key) -> Deletion | None:
        """Return a deletion that is known."""
        return self._deletions.get(key)

    def problem(self, definition: Definition) -> str | None:
        """Return why there is no room for a new definition; None if there is."""
        if definition.size > MAX_DEFINITION_BYTES:
            return f"a definition has {definition.size} bytes, more than {MAX_DEFINITION_BYTES}"
        versions = self._topics.get(definition.topic)
        if versions is None and len(self._topics) >= MAX_TOPICS:
            return f"{MAX_TOPICS} topics have definitions already"
        if versions is not None and len(versions) >= MAX_VERSIONS and definition.version not in versions:
            return f"the topic has {MAX_VERSIONS} definitions already"
        if self.total_bytes + definition.size > MAX_TOTAL_BYTES:
            return f"all definitions have {self.total_bytes} bytes already"
        return None

    def apply(self, said: Definition | Deletion, published_ms: int, position: Position) -> str | None:
        """Take over what a record says; return why it was left out, None if it was not."""
        problem: str | None = None
        if isinstance(said, Deletion):
            self._delete(said)
        else:
            problem = self._add(said)
        key = said.topic, said.version
        known = self._published.get(key)
        is_known = key in self._deletions if isinstance(said, Deletion) else self.find(*key) is not None
        if is_known and (known is None or published_ms >= known.published_ms):
            self._published[key] = PublishedRecord(published_ms, position)
        return problem

    def _add(self, definition: Definition) -> str | None:
        for key in ((definition.topic, b""), (definition.topic, definition.version)):
            deletion = self._deletions.get(key)
            if deletion is not None and definition.registered_ms <= deletion.registered_ms:
                return None
        known = self.find(definition.topic, definition.version)
        if known is not None and known.registered_ms >= definition.registered_ms:
            return None  # two gateways have registered it; the last time counts, as it does after a deletion
        if known is None and (problem := self.problem(definition)) is not None:
            return problem
        self.total_bytes += definition.size - (0 if known is None else known.size)
        self._topics.setdefault(definition.topic, {})[definition.version] = definition
        return None

    def _delete(self, deletion: Deletion) -> None:
        key = deletion.topic, deletion.version
        known = self._deletions.get(key)
        if known is not None and known.registered_ms > deletion.registered_ms:
            return
        self._deletions[key] = deletion
        for definition in self.versions(deletion.topic):
            is_meant = not deletion.version or deletion.version == definition.version
            if is_meant and definition.registered_ms <= deletion.registered_ms:
                self._remove(definition)
        if len(self._deletions) > MAX_DELETIONS:
            self._forget(min(self._deletions.values(), key=lambda each: each.registered_ms))

    def _remove(self, definition: Definition) -> None:
        versions = self._topics[definition.topic]
        del versions[definition.version]
        if not versions:
            del self._topics[definition.topic]
        self._published.pop((definition.topic, definition.version), None)
        self.total_bytes -= definition.size

    def _forget(self, deletion: Deletion) -> None:
        self._deletions.pop((deletion.topic, deletion.version))
        self._published.pop((deletion.topic, deletion.version), None)

    def forget_deletions(self, before_ms: int) -> None:
        """Forget deletions that are older than this time."""
        for deletion in [each for each in self._deletions.values() if each.registered_ms < before_ms]:
            self._forget(deletion)

    def lost_positions(self) -> None:
        """Note that the records are gone, or have other positions now: all of them have to be published again."""
        self._published.clear()

    def outdated(self, before_ms: int, first: Position) -> list[Definition | Deletion]:
        """Return what was published last before a time, or before a position."""
        said: list[Definition | Deletion] = [each for versions in self._topics.values() for each in versions.values()]
        said += self._deletions.values()
        return [each for each in said if self._is_outdated((each.topic, each.version), before_ms, first)]

    def _is_outdated(self, key: Key, before_ms: int, first: Position) -> bool:
        record = self._published.get(key)
        return record is None or record.published_ms < before_ms or (record.position != () and record.position < first)


class Definitions:
    """The definitions of one backing cluster; see the module. Call `start` and `close`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        topic: str = DEFINITIONS_TOPIC,
        republish_after_s: float = REPUBLISH_AFTER_S,
        clock: Callable[[], float] = time,
    ) -> None:
        """`topic` is the name of the topic; `clock` returns the time in s since the epoch."""
        self.topic = definitions_topic(cluster, topic)
        self._cluster, self._clock = cluster, clock
        self._republish_after_s = republish_after_s * random.uniform(1.0, REPUBLISH_SPREAD)  # noqa: S311 - jitter
        self._table = DefinitionTable()
        self._outbound: Outbound | None = None
        self._is_outbound_outdated = False
        """True if the topic was deleted since the outbound was opened."""
        self._outbound_lock, self._create_lock, self._catch_up_lock = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._position: Position | None = None
        """Position of the next record to read; None while there is no topic."""
        self._changed = asyncio.Event()
        """Set when records were read, or the topic was found; each wait is for the next event."""
        self._look = asyncio.Event()
        """Set when the topic may exist now."""
        self._tasks: list[asyncio.Task[None]] = []
        self._caught_up_at = float("-inf")
        """Loop time before which everything that was published is read."""
        self._left_out = 0

    async def start(self) -> None:
        """Read all records. Raises ClusterError; the caller may call this again."""
        if not self._tasks:
            self._tasks = [spawn(self._follow(), f"{self.topic} reader"), spawn(self._republish_all(), f"{self.topic} check")]
        try:
            await self._catch_up(START_S)
        except TimeoutError:
            raise RequestTimeout(f"the topic {self.topic} was not read within {START_S:.0f} s") from None

    async def close(self, deadline: float | None = None) -> None:
        """Stop reading and publishing, by the deadline (loop time)."""
        tasks, self._tasks = self._tasks, []
        await cancel(*tasks)
        outbound, self._outbound = self._outbound, None
        if outbound is not None:
            await outbound.close(deadline)

    # --- what clients ask -------------------------------------------------------------------------------------------------

    def versions(self, topic: str) -> Sequence[Definition]:
        """Return the versions of a topic that are known now, in the order in which they appeared."""
        return self._table.versions(topic)

    def read_before(self, topic: str, version: bytes) -> Sequence[Definition]:
        """Return the versions of a topic whose records come before that of this one, in the order that all gateways see."""
        return self._table.read_before(topic, version)

    def find(self, topic: str, version: bytes) -> Definition | None:
        """Return a version of a topic, if it is known now."""
        return self._table.find(topic, version)

    async def catch_up(self) -> None:
        """Wait until everything that was published before this call is read; calls at the same time ask the cluster once.

        Raises RequestRefused if that takes too long or the cluster cannot be asked: the client may try again.
        """
        try:
            await self._catch_up(CATCH_UP_S)
        except (TimeoutError, ClusterError) as error:
            log.warning("the records of %s in %s are not known now: %s", self.topic, self._cluster.name, error or "no answer")
            raise RequestRefused(f"the topic {self.topic} cannot be read now", RefusalReason.NOT_READY) from error

    async def add(self, topic: str, version: bytes, type_: int, data: bytes, properties: tuple[Pair, ...] = ()) -> Definition:
        """Publish a new definition; return it when it is stored, and read. Raises RequestRefused."""
        now_ms = self._now_ms()
        definition = Definition(topic, version, self._table.next_ms(topic, now_ms), type_, data, properties)
        if (problem := self._problem(definition)) is not None:
            raise RequestRefused(problem, RefusalReason.NOT_ALLOWED)
        await self._publish_and_read([definition], lambda: self._is_known(definition))
        return definition

    def _is_known(self, definition: Definition) -> bool:
        """Return True if this definition was read, or a later one in its place."""
        known = self._table.find(definition.topic, definition.version)
        return known is not None and known.registered_ms >= definition.registered_ms

    async def delete(self, topic: str, version: bytes = b"") -> None:
        """Delete a version of a topic, or all of them; does nothing if there are none. Raises RequestRefused."""
        await self.catch_up()
        known = self._table.find(topic, version) if version else self._table.versions(topic)
        if known:
            deletion = Deletion(topic, version, self._table.next_ms(topic, self._now_ms()))
            await self._publish_and_read([deletion], lambda: self._is_deleted(deletion))

    def _is_deleted(self, deletion: Deletion) -> bool:
        known = self._table.deletion((deletion.topic, deletion.version))
        return known is not None and known.registered_ms >= deletion.registered_ms

    def _problem(self, definition: Definition) -> str | None:
        most = self._cluster.capabilities.max_message_bytes
        if most is not None and len(encode_record(definition, definition.registered_ms)) > most:
            return f"a definition has {definition.size} bytes, more than the cluster stores in a message"
        return self._table.problem(definition)

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    # --- publishing -------------------------------------------------------------------------------------------------------

    async def _publish_and_read(self, said: Sequence[Definition | Deletion], is_read: Callable[[], bool]) -> None:
        """Publish, and wait until the records come back: so this gateway knows what was published before them, too."""
        if not self._tasks:
            raise LocalProtocolError(f"the reader of {self.topic} is closed")
        try:
            async with asyncio.timeout(REQUEST_S + CREATE_S):
                await self._create()
                await self._publish(said)
            await self._wait_until(is_read, CATCH_UP_S)
        except (TimeoutError, ClusterError) as error:
            log.warning("a record of %s cannot be stored in %s: %s", self.topic, self._cluster.name, error or "no answer")
            raise RequestRefused(f"nothing can be stored in the topic {self.topic} now", RefusalReason.NOT_READY) from error

    async def _create(self) -> None:
        """Create the topic if it does not exist. Raises ClusterError, RequestRefused."""
        async with self._create_lock:
            backoff = Backoff()
            is_created = False
            while await self._cluster.describe(self.topic) is None:
                if not self._cluster.capabilities.create_topics:
                    raise RequestRefused(f"the topic {self.topic} does not exist", RefusalReason.NOT_ALLOWED)
                if not is_created:
                    await self._cluster.create(self.topic, 1)
                    is_created = True
                else:
                    await asyncio.sleep(backoff.delay())
            self._look.set()

    async def _publish(self, said: Sequence[Definition | Deletion]) -> None:
        """Store records. Raises ClusterError."""
        async with self._outbound_lock:
            if self._outbound is not None and self._is_outbound_outdated:
                await self._drop_outbound(self._outbound)
            if self._outbound is None:
                self._is_outbound_outdated = False
                self._outbound = await self._cluster.outbound(
                    OutboundSpec(self.topic, stamp_origin=False, max_elapsed_s=REQUEST_S)
                )
            outbound = self._outbound
        now_ms = self._now_ms()
        messages = [Message(encode_record(each, now_ms)) for each in said]
        try:
            receipt = await outbound.send(0, Share(Batch.of(messages)))
        except ClusterError:
            await self._drop_outbound(outbound)
            raise
        if receipt.failures:
            await self._drop_outbound(outbound)
            failure = receipt.failures[0]
            raise ClusterError(f"{self._cluster.name}/{self.topic} refuses a record: {failure.reason}", failure.failure_kind)

    async def _drop_outbound(self, outbound: Outbound) -> None:
        """Close an outbound that has failed: the next send opens another one."""
        if self._outbound is outbound:
            self._outbound = None
            await outbound.close(asyncio.get_running_loop().time() + 1.0)

    async def _republish_all(self) -> None:
        """Publish again what is old, now and then."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.republish()
            except (ClusterError, RequestRefused, TimeoutError) as error:
                log.warning("records of %s cannot be published again now, which is tried again in %.0f s: %s",
                            self.topic, CHECK_S, error or "no answer")  # fmt: skip

    async def republish(self) -> int:
        """Publish again what is old, or what the retention has taken already; return the number of records.

        Raises ClusterError, RequestRefused, TimeoutError.
        """
        await self.catch_up()
        now_ms = self._now_ms()
        self._table.forget_deletions(now_ms - round(FORGET_DELETIONS_S * 1000))
        bounds = await self._bounds(REQUEST_S)
        if bounds is None:
            self._table.lost_positions()
        first = () if bounds is None else bounds.first
        outdated = self._table.outdated(now_ms - round(self._republish_after_s * 1000), first)
        if outdated and bounds is None:
            async with asyncio.timeout(REQUEST_S + CREATE_S):
                await self._create()
        for begin in range(0, len(outdated), PUBLISHED_AT_ONCE):
            async with asyncio.timeout(REQUEST_S + REQUEST_S):
                await self._publish(outdated[begin : begin + PUBLISHED_AT_ONCE])
        if outdated:
            log.info("published %d definitions again in %s/%s", len(outdated), self._cluster.name, self.topic)
        return len(outdated)

    # --- reading ----------------------------------------------------------------------------------------------------------

    async def _bounds(self, timeout_s: float) -> Bounds | None:
        """Return the bounds of the topic's partition; None if it does not exist. Raises ClusterError, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            partition = await self._partition()
            return None if partition is None else (await self._cluster.bounds(self.topic, partition))[partition]

    async def _partition(self) -> str | None:
        """Return the partition with the records, the first one: there may be more. None if it does not exist."""
        topic = await self._cluster.describe(self.topic)
        indexes = {} if topic is None else topic.index_by_partition
        return min(indexes, key=indexes.__getitem__, default=None)

    async def _catch_up(self, timeout_s: float) -> None:
        """Wait until what was published before this call is read. Raises ClusterError, TimeoutError."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        if not self._tasks:
            raise LocalProtocolError(f"the reader of {self.topic} is closed")
        async with asyncio.timeout(timeout_s), self._catch_up_lock:
            if self._caught_up_at > since:
                return  # somebody else has waited, and asked later than this call
            asked_at, position = loop.time(), self._position
            bounds = await self._bounds(timeout_s)
            if position is not None and (bounds is None or position > bounds.next):
                await self._read_anew()  # readers of some systems do not notice that their topic was deleted
            if bounds is not None:
                self._look.set()
                await self._wait_until(lambda: self._has_read(bounds), timeout_s)
            self._caught_up_at = asked_at

    async def _read_anew(self) -> None:
        """Open the topic again: it was deleted, and perhaps made anew."""
        await cancel(*self._tasks[:1])
        self._restart(None)
        if self._tasks:  # not closed meanwhile
            self._tasks[0] = spawn(self._follow(), f"{self.topic} reader")

    def _has_read(self, bounds: Bounds) -> bool:
        position = self._position
        if position is None:
            return False
        return position >= bounds.next or bounds.first == bounds.next or (bounds.last is not None and position > bounds.last)

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _follow(self) -> None:
        """Read the topic, as soon as there is one, until the task is cancelled."""
        backoff = Backoff()
        while True:
            self._look.clear()
            try:
                await self._read(backoff)
                await self._look.wait()
            except (ClusterError, TimeoutError) as error:
                pause_s = backoff.delay()
                log.warning("reading %s/%s failed, retrying in %.1f s: %s",
                            self._cluster.name, self.topic, pause_s, error or "no answer")  # fmt: skip
                await asyncio.sleep(pause_s)

    async def _read(self, backoff: Backoff) -> None:
        """Read the topic; returns if it does not exist. Raises ClusterError, TimeoutError."""
        async with asyncio.timeout(REQUEST_S):
            partition = await self._partition()
        if partition is None:
            self._restart(None)
            return
        async with asyncio.timeout(REQUEST_S):
            bounds = (await self._cluster.bounds(self.topic, partition))[partition]
            if self._position is None or not bounds.first <= self._position <= bounds.next:
                self._restart(bounds.first)
            assert self._position is not None  # noqa: S101 - set above
            reader = await self._cluster.reader(self.topic, partition, self._position, max_bytes=READ_BYTES)
        try:
            self._notify()
            while True:
                try:
                    batch = await reader.receive()
                except GapError as gap:
                    if gap.resume is None:
                        self._restart(None)
                        return
                    await reader.seek(gap.resume)
                    self._position = gap.resume
                    self._notify()
                    continue
                assert batch is not None  # noqa: S101 - a reader without an end
                backoff.reset()
                self._apply(batch)
        finally:
            await reader.close(asyncio.get_running_loop().time() + 1.0)

    def _restart(self, position: Position | None) -> None:
        """Read from another position on: the topic was deleted, made anew, or restored."""
        if self._position is not None:
            log.warning("the topic %s/%s was deleted, or has lost records; they will be published again",
                        self._cluster.name, self.topic)  # fmt: skip
            self._table.lost_positions()
            self._is_outbound_outdated = True
        self._position = position

    def _apply(self, batch: Batch) -> None:
        for message in batch.messages:
            try:
                said, published_ms = decode_record(message.payload or b"")
                problem = self._table.apply(said, published_ms, message.position)
            except InvalidRecord as error:
                problem = message.defect or str(error)
            if problem is not None:
                self._left_out += 1
                log.warning("left out a record of %s/%s: %s: %d so far",
                            self._cluster.name, self.topic, problem, self._left_out)  # fmt: skip
        self._position = batch.next
        self._notify()
