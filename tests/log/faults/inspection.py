"""Reads a whole log in a fresh process after a fault, by both ways of reading, and collects what the log says about it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read as read_range
from mqbridge.errors import ClusterError, GapError, MqbridgeError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from tests.log.faults import units
from tests.log.faults.history import GroupPartition, PartitionId
from tests.log.faults.messages import MessageId, parse, payload, topic_name, topic_number
from tests.log.faults.saying import RecordHandler, stray

MAX_STEPS = 500
"""Maximum number of gaps of a partition; more are a loop."""
PARTITION_S = 8.0
"""Time for reading one partition."""
APPENDED = 3
"""Number of messages that are appended to each partition."""
INSPECTOR = 60_000
"""Number of the writer of these messages."""


@dataclass(slots=True)
class Reading:
    """A partition as one way of reading it shows it."""

    messages: dict[int, tuple[MessageId | None, int]] = field(default_factory=dict)
    """Identity and size of each message by its offset; None if its payload is not one that was sent."""
    gaps: list[tuple[int, int | None, str]] = field(default_factory=list)
    """First offset, offset after the gap (None: all after it), and text of each GapError."""
    error: tuple[int, str] | None = None
    """The offset and the text of the ClusterError that ended the reading."""
    problems: list[str] = field(default_factory=list)

    def says(self, offset: int) -> bool:
        """Return True if an error covers this offset."""
        if self.error is not None and offset >= self.error[0]:
            return True
        return any(begin <= offset and (end is None or offset < end) for begin, end, _ in self.gaps)


@dataclass(slots=True)
class Observation:
    """What a fresh process saw."""

    error: str | None = None
    """Text of the error of `connect`, after which nothing was read."""
    opening: list[str] = field(default_factory=list)
    """Log records from WARNING on until the log was open."""
    said: list[str] = field(default_factory=list)
    """Later log records from WARNING on."""
    topics: list[str] = field(default_factory=list)
    topic_errors: dict[int, str] = field(default_factory=dict)
    """Errors of `bounds`, by topic."""
    bounds: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)
    readings: dict[str, dict[PartitionId, Reading]] = field(default_factory=lambda: {"read": {}, "lane": {}})
    """By way of reading and partition."""
    committed: dict[GroupPartition, int] = field(default_factory=dict)
    group_errors: dict[str, str] = field(default_factory=dict)
    """Errors of `committed` and of joining, by group."""
    appended: dict[PartitionId, list[tuple[MessageId, int]]] = field(default_factory=dict)
    """Identity and offset of the messages that were appended and acknowledged."""
    append_errors: dict[PartitionId, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def inspect(path: Path, settings: Mapping[str, Any], topics: Mapping[int, int], groups: Sequence[str]) -> Observation:
    """Open, read and append to a log in this process."""
    units.install()
    seen = Observation()
    is_open = False

    def say(text: str) -> None:
        (seen.said if is_open else seen.opening).append(text)

    RecordHandler.install(say, seen.problems.append)

    async def run() -> None:
        nonlocal is_open
        cluster = LogCluster("log", LogSettings.model_validate({"path": path, "poll": "10ms", "retention": None, **settings}))
        try:
            await cluster.connect()
        except MqbridgeError as error:
            seen.error = f"{type(error).__name__}: {error}"
            return
        is_open = True
        try:
            await _Inspector(cluster, topics, seen).run(groups)
        finally:
            await cluster.close()

    try:
        asyncio.run(run())
    except Exception as error:  # noqa: BLE001 - the judge reports it
        seen.problems.append(stray(error))
    return seen


async def read_partitions(cluster: LogCluster, topics: Mapping[int, int], seen: Observation) -> None:
    """Read the partitions of these topics of an open log."""
    await _Inspector(cluster, topics, seen).read_partitions()


class _Inspector:
    def __init__(self, cluster: LogCluster, topics: Mapping[int, int], seen: Observation) -> None:
        self._cluster, self._topics, self._seen = cluster, topics, seen

    async def run(self, groups: Sequence[str]) -> None:
        """Read everything that can be read, then append."""
        try:
            self._seen.topics = await self._cluster.topics()
        except ClusterError as error:
            self._seen.said.append(str(error))
        for group in groups:
            await self._read_committed(group)
        await self.read_partitions()
        await self._read_lanes()
        for group in groups:
            await self._resume(group)
        for key in self._seen.bounds:
            await self._append(key)

    async def read_partitions(self) -> None:
        """Read every partition from its first to its next offset through `Cluster.read`."""
        for topic in self._topics:
            try:
                bounds = await self._cluster.bounds(topic_name(topic))
            except ClusterError as error:
                self._seen.topic_errors[topic] = str(error)
                continue
            for name, bound in bounds.items():
                first, end = bound.first[0], bound.next[0]
                if self._is_offset(first, f"bounds of {topic}/{name}") and self._is_offset(end, f"bounds of {topic}/{name}"):
                    self._seen.bounds[topic, int(name)] = first, end
        for key, (first, end) in self._seen.bounds.items():
            self._seen.readings["read"][key] = await self._limited(self._read(key, first, end))

    def _is_offset(self, value: object, where: str) -> bool:
        """Return True if the log has returned a number; another type is a problem."""
        if not isinstance(value, int):
            self._seen.problems.append(f"wrong type: {where} is {value!r}")
        return isinstance(value, int)

    async def _limited(self, reading: Any) -> Reading:
        """Return the reading; one that takes too long is a problem."""
        try:
            async with asyncio.timeout(PARTITION_S):
                result: Reading = await reading
        except TimeoutError:
            result = Reading(problems=["hang: reading a partition did not end"])
        except Exception as error:  # noqa: BLE001 - the judge reports it
            result = Reading(problems=[stray(error)])
        return result

    async def _read(self, key: PartitionId, first: int, end: int) -> Reading:
        """Read a partition through `Cluster.read`."""
        reading, offset = Reading(), first
        while offset < end and len(reading.gaps) < MAX_STEPS:
            try:
                async for batch in read_range(self._cluster, topic_name(key[0]), str(key[1]), (offset,), (end,)):
                    _note(reading, batch)
                    offset = batch.next[0]
                break
            except GapError as error:
                resume = _note_gap(reading, offset, error)
                if resume is None:
                    break
                offset = resume
            except ClusterError as error:
                reading.error = offset, str(error)
                break
        return reading

    async def _read_lanes(self) -> None:
        """Read all partitions as the only member of a new group."""
        topics = tuple(topic_name(topic) for topic in self._topics if topic not in self._seen.topic_errors)
        missing = dict(self._seen.bounds)
        try:
            inbound = await self._cluster.inbound(InboundSpec(topics, f"inspector-{uuid.uuid4().hex}"))
        except ClusterError as error:
            self._seen.readings["lane"] = {key: Reading(error=(0, str(error))) for key in missing}
            return
        lanes = inbound.lanes()
        try:
            while missing:
                async with asyncio.timeout(PARTITION_S):
                    lane = await anext(lanes)
                key = topic_number(lane.partition.topic), int(lane.partition.name)
                if key not in missing:
                    self._seen.problems.append(f"stored twice: {lane.partition} has two lanes")
                    continue
                first, end = missing.pop(key)
                self._seen.readings["lane"][key] = await self._limited(self._read_lane(lane, first, end))
        except ClusterError as error:
            self._seen.readings["lane"].update({key: Reading(error=(0, str(error))) for key in missing})
        except TimeoutError:
            self._seen.problems.append("hang: a group of one member did not get all partitions")
        finally:
            await inbound.close(asyncio.get_running_loop().time() + PARTITION_S)

    async def _read_lane(self, lane: Any, first: int, end: int) -> Reading:
        reading, offset = Reading(), first
        while offset < end and len(reading.gaps) < MAX_STEPS:
            try:
                batch = await lane.receive()
                _note(reading, batch)
                lane.acknowledge(batch)
                offset = batch.next[0]
            except GapError as error:
                resume = _note_gap(reading, offset, error)
                if resume is None:
                    break
                offset = resume
                await lane.seek((resume,))
            except MqbridgeError as error:
                reading.error = offset, str(error)
                break
        return reading

    async def _read_committed(self, group: str) -> None:
        for topic in self._topics:
            try:
                for name, (position,) in (await self._cluster.committed(topic_name(topic), group)).items():
                    if self._is_offset(position, f"position of {group} in {topic}/{name}"):
                        self._seen.committed[group, topic, int(name)] = position
            except ClusterError as error:
                self._seen.group_errors[group] = str(error)

    async def _resume(self, group: str) -> None:
        """Note what the next member of the group hears if a committed position is beyond the end of its partition."""
        ends = {key: self._seen.bounds.get(key[1:], (0, 0))[1] for key in self._seen.committed}
        beyond = {key for key, end in ends.items() if key[0] == group and self._seen.committed[key] > end}
        if not beyond:
            return
        try:
            inbound = await self._cluster.inbound(InboundSpec(tuple({topic_name(topic) for _, topic, _ in beyond}), group))
            try:
                async with asyncio.timeout(2):
                    async for lane in inbound.lanes():
                        if (group, topic_number(lane.partition.topic), int(lane.partition.name)) in beyond:
                            await lane.receive()
            finally:
                await inbound.close(asyncio.get_running_loop().time() + PARTITION_S)
        except MqbridgeError as error:
            self._seen.group_errors[group] = f"{type(error).__name__}: {error}"
        except TimeoutError:
            pass  # nothing is said

    async def _append(self, key: PartitionId) -> None:
        """Append messages to a partition, and read them back."""
        topic, partition = key
        ids = [MessageId(topic, partition, INSPECTOR, number) for number in range(APPENDED)]
        try:
            async with asyncio.timeout(PARTITION_S):
                outbound = await self._cluster.outbound(
                    OutboundSpec(topic_name(topic), stamp_origin=False, max_elapsed_s=PARTITION_S / 2)
                )
                receipt = await outbound.send(partition, Share(Batch.of([Message(payload(id_, 200)) for id_ in ids])))
            if receipt.failures:
                self._seen.append_errors[key] = receipt.failures[0].reason
                return
        except MqbridgeError as error:
            self._seen.append_errors[key] = str(error)
            return
        except TimeoutError:
            self._seen.problems.append("hang: an append has no result")
            return
        offsets = [position[0] for position in receipt.positions]
        self._seen.appended[key] = list(zip(ids, offsets, strict=True))
        reading = await self._limited(self._read(key, offsets[0], offsets[-1] + 1))
        self._seen.problems += reading.problems
        for id_, offset in self._seen.appended[key]:
            if reading.messages.get(offset, (None, 0))[0] != id_ and not reading.says(offset):
                self._seen.problems.append(f"append: {id_} was appended at offset {offset} but not read back")


def _note(reading: Reading, batch: Batch) -> None:
    for offset, message in enumerate(batch.messages, batch.first[0]):
        if offset in reading.messages:
            reading.problems.append(f"stored twice: offset {offset} was delivered again")
        reading.messages[offset] = parse(message.payload), len(message.payload or b"")


def _note_gap(reading: Reading, offset: int, error: GapError) -> int | None:
    """Note a gap; return the offset after it, None if the reading ends there."""
    resume = error.resume[0] if error.resume else None
    if resume is not None and resume <= offset:
        reading.problems.append(f"hang: a gap at offset {offset} continues at {resume}")
        resume = None
    reading.gaps.append((offset, resume, str(error)))
    return resume
