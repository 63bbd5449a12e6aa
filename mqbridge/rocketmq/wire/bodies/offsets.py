"""Tables of offsets: of a topic's queues, of a group's progress, of all groups, and the one that resets a client."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, codec_of, member
from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_of
from mqbridge.rocketmq.wire.lenient import members_of, whole

SEPARATOR = "@"
"""Between topic and group in the keys of a broker's table; neither can contain it."""


@dataclass(frozen=True, slots=True)
class QueueStats(Body):
    """What a queue holds: offsets from `min_offset` up to below `max_offset`; `updated` is the last message's store time, ms."""

    min_offset: int
    max_offset: int
    updated: int = member("lastUpdateTimestamp", 0)


@dataclass(frozen=True, slots=True)
class TopicStats(Body):
    """Answer to GET_TOPIC_STATS_INFO: what the queues of a topic hold at one broker."""

    queues: Mapping[Queue, QueueStats] = member("offsetTable")


@dataclass(frozen=True, slots=True)
class ConsumeOffsets(Body):
    """A group's place in a queue; `consumed_at` is the store time of the message before it, ms."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    consumed_at: int = member("lastTimestamp", 0)


@dataclass(frozen=True, slots=True)
class ConsumeStats(Body):
    """Answer to GET_CONSUME_STATS: a group's progress at one broker."""

    offsets: Mapping[Queue, ConsumeOffsets] = member("offsetTable")
    tps: float = member("consumeTps", 0.0)


_BY_QUEUE_ID = codec_of(Mapping[int, int])


def _write_groups(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> dict[str, Any]:
    return {f"{topic}{SEPARATOR}{group}": _BY_QUEUE_ID.write(queues) for (topic, group), queues in offsets.items()}


def _read_groups(table: Any) -> dict[tuple[str, str], Mapping[int, int]]:
    """Keys without a group, which brokers also keep, are left out."""
    offsets = {}
    for key, queues in members_of(table).items():
        topic, at, group = key.partition(SEPARATOR)
        if at and isinstance(queues, dict):
            offsets[topic, group] = _BY_QUEUE_ID.read(queues)
    return offsets


@dataclass(frozen=True, slots=True)
class ConsumerOffsets(Body):
    """Answer to GET_ALL_CONSUMER_OFFSET: every offset that a broker keeps, by topic and group, then by queue id."""

    offsets: Mapping[tuple[str, str], Mapping[int, int]] = member("offsetTable", codec=Codec(_write_groups, _read_groups, {}))


_BY_QUEUE = codec_of(Mapping[Queue, int])


def _read_reset(table: Any) -> dict[Queue, int]:
    if isinstance(table, list):
        return {queue_of(one): whole(members_of(one).get("offset", 0)) for one in table}
    queues: dict[Queue, int] = _BY_QUEUE.read(table)
    return queues


@dataclass(frozen=True, slots=True)
class ResetOffsets(Body):
    """RESET_CONSUMER_CLIENT_OFFSET: where to go on. A map for Java clients, a list for C ones."""

    offsets: Mapping[Queue, int] = member("offsetTable", codec=Codec(_BY_QUEUE.write, _read_reset, {}))
