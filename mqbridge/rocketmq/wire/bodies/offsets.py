"""Tables of offsets: a topic's queues, a group's progress, all groups of a broker, and the reset of a client."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, codec_of, member
from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_of
from mqbridge.rocketmq.wire.fastjson import as_int64, as_members

SEPARATOR = "@"
"""Between topic and group in the keys of a broker's table; neither can contain it."""


@dataclass(frozen=True, slots=True)
class QueueStats(Body):
    """The range of a queue, `min_offset` to below `max_offset`; `updated` is the last message's store time, ms."""

    min_offset: int
    max_offset: int
    updated: int = member("lastUpdateTimestamp", 0)


@dataclass(frozen=True, slots=True)
class TopicStats(Body):
    """Response to GET_TOPIC_STATS_INFO: the ranges of a topic's queues at one broker."""

    queues: Mapping[Queue, QueueStats] = member("offsetTable")


@dataclass(frozen=True, slots=True)
class ConsumeOffsets(Body):
    """A group's progress in a queue; `consumed_at` is the store time of the last consumed message, ms."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    consumed_at: int = member("lastTimestamp", 0)


@dataclass(frozen=True, slots=True)
class ConsumeStats(Body):
    """Response to GET_CONSUME_STATS: a group's progress at one broker."""

    offsets: Mapping[Queue, ConsumeOffsets] = member("offsetTable")
    tps: float = member("consumeTps", 0.0)


_BY_QUEUE_ID = codec_of(Mapping[int, int])


def _write_groups(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> dict[str, Any]:
    return {f"{topic}{SEPARATOR}{group}": _BY_QUEUE_ID.write(queues) for (topic, group), queues in offsets.items()}


def _read_groups(table: Any) -> dict[tuple[str, str], Mapping[int, int]]:
    """Read the table, skipping keys without a group, which brokers also keep."""
    offsets = {}
    for key, queues in as_members(table).items():
        topic, separator, group = key.partition(SEPARATOR)
        if separator and isinstance(queues, dict):
            offsets[topic, group] = _BY_QUEUE_ID.read(queues)
    return offsets


@dataclass(frozen=True, slots=True)
class ConsumerOffsets(Body):
    """Response to GET_ALL_CONSUMER_OFFSET: every offset of a broker, by topic and group, then by queue id."""

    offsets: Mapping[tuple[str, str], Mapping[int, int]] = member("offsetTable", codec=Codec(_write_groups, _read_groups, {}))


_BY_QUEUE = codec_of(Mapping[Queue, int])


def _read_reset(table: Any) -> dict[Queue, int]:
    if isinstance(table, list):
        return {queue_of(entry): as_int64(as_members(entry).get("offset", 0)) for entry in table}
    queues: dict[Queue, int] = _BY_QUEUE.read(table)
    return queues


@dataclass(frozen=True, slots=True)
class ResetOffsets(Body):
    """RESET_CONSUMER_CLIENT_OFFSET: the offsets to continue from. A map for Java clients, a list for C clients."""

    offsets: Mapping[Queue, int] = member("offsetTable", codec=Codec(_BY_QUEUE.write, _read_reset, {}))
