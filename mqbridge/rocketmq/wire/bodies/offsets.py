"""Tables of offsets: the ranges of a topic's queues, the progress of groups, and the new offsets of a reset."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, codec_of, member
from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_body, queue_of
from mqbridge.rocketmq.wire.fastjson import as_int64, as_members

SEPARATOR = "@"
"""Separator of topic and group in the keys of a broker's table; neither name can contain it."""


@dataclass(frozen=True, slots=True)
class QueueStats(Body):
    """The offsets in a queue: `min_offset` up to, not including, `max_offset`.

    `updated` is the store time of the last message (ms since the epoch); 0 if there is none.
    """

    min_offset: int
    max_offset: int
    updated: int = member("lastUpdateTimestamp", 0)


@dataclass(frozen=True, slots=True)
class TopicStats(Body):
    """Response to GET_TOPIC_STATS_INFO: the ranges of a topic's queues at one broker."""

    queues: Mapping[Queue, QueueStats] = member("offsetTable")


@dataclass(frozen=True, slots=True)
class ConsumeOffsets(Body):
    """A group's progress in a queue.

    `broker_offset` is the queue's end, `consumer_offset` the committed offset, `pull_offset` the offset of the group's last pull.
    Each is the offset of the next message to store, consume or pull. `consumed_at` is the store time of the last consumed
    message, in ms since the epoch; 0 if it is not known.
    """

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    consumed_at: int = member("lastTimestamp", 0)


@dataclass(frozen=True, slots=True)
class ConsumeStats(Body):
    """Response to GET_CONSUME_STATS: a group's progress at one broker. `tps` is how many messages it consumes per second."""

    offsets: Mapping[Queue, ConsumeOffsets] = member("offsetTable")
    tps: float = member("consumeTps", 0.0)


_BY_QUEUE_ID = codec_of(Mapping[int, int])


def _write_group_offsets(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> dict[str, Any]:
    return {f"{topic}{SEPARATOR}{group}": _BY_QUEUE_ID.write(queues) for (topic, group), queues in offsets.items()}


def _read_group_offsets(table: Any) -> dict[tuple[str, str], Mapping[int, int]]:
    """Read the table, and skip keys that are not TOPIC@GROUP: brokers write such keys too."""
    offsets = {}
    for key, queues in as_members(table).items():
        topic, separator, group = key.partition(SEPARATOR)
        if separator and isinstance(queues, dict):
            offsets[topic, group] = _BY_QUEUE_ID.read(queues)
    return offsets


@dataclass(frozen=True, slots=True)
class ConsumerOffsets(Body):
    """Response to GET_ALL_CONSUMER_OFFSET: all committed offsets at a broker, by (topic, group), then by queue id."""

    offsets: Mapping[tuple[str, str], Mapping[int, int]] = member(
        "offsetTable", codec=Codec(_write_group_offsets, _read_group_offsets, {})
    )


_BY_QUEUE = codec_of(Mapping[Queue, int])


def _read_reset_offsets(table: Any) -> dict[Queue, int]:
    """Read a map (for Java clients) or a list (for C clients)."""
    if isinstance(table, list):
        return {queue_of(entry): as_int64(as_members(entry).get("offset", 0)) for entry in table}
    queues: dict[Queue, int] = _BY_QUEUE.read(table)
    return queues


@dataclass(frozen=True, slots=True)
class ResetOffsets(Body):
    """RESET_CONSUMER_CLIENT_OFFSET, a request from a broker to a consumer: the offsets from which the consumer continues."""

    offsets: Mapping[Queue, int] = member("offsetTable", codec=Codec(_BY_QUEUE.write, _read_reset_offsets, {}))

    def encode_for_c(self) -> bytes:
        """Encode as a list, which C++ clients read."""
        return orjson.dumps({"offsetTable": [queue_body(queue) | {"offset": offset} for queue, offset in self.offsets.items()]})
