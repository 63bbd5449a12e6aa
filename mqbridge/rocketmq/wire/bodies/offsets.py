"""Tables of offsets: of a topic's queues, of a group's progress, of all groups, and the one that resets a client."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_key, queue_of, queue_of_key
from mqbridge.rocketmq.wire.lenient import map_of, number_of, read, whole

SEPARATOR = "@"
"""Between topic and group in the keys of a broker's table; neither can contain it."""


class QueueStats(NamedTuple):
    """What a queue holds: offsets from `min_offset` up to below `max_offset`; `updated` is the last message's store time, ms."""

    min_offset: int
    max_offset: int
    updated: int = 0


class ConsumeOffsets(NamedTuple):
    """A group's place in a queue; `consumed_at` is the store time of the message before it, ms."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    consumed_at: int = 0


class ConsumeStats(NamedTuple):
    """A group's progress."""

    offsets: Mapping[Queue, ConsumeOffsets]
    tps: float = 0.0


def encode_topic_stats(stats: Mapping[Queue, QueueStats]) -> bytes:
    """Answer to GET_TOPIC_STATS_INFO."""
    table = {
        queue_key(queue): {"lastUpdateTimestamp": one.updated, "maxOffset": one.max_offset, "minOffset": one.min_offset}
        for queue, one in stats.items()
    }
    return orjson.dumps({"offsetTable": table})


def decode_topic_stats(body: bytes) -> dict[Queue, QueueStats]:
    """What the queues of a topic hold at one broker. Raises RemoteProtocolError."""
    return read(
        "a topic's statistics",
        body,
        lambda said: {
            queue_of_key(key): QueueStats(number_of(one, "minOffset"), number_of(one, "maxOffset"), _time(one))
            for key, one in map_of(said, "offsetTable").items()
        },
    )


def _time(said: dict[str, Any]) -> int:
    return number_of(said, "lastUpdateTimestamp")


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    """Answer to GET_CONSUME_STATS."""
    table = {
        queue_key(queue): {
            "brokerOffset": one.broker_offset,
            "consumerOffset": one.consumer_offset,
            "lastTimestamp": one.consumed_at,
            "pullOffset": one.pull_offset,
        }
        for queue, one in stats.offsets.items()
    }
    return orjson.dumps({"consumeTps": stats.tps, "offsetTable": table})


def decode_consume_stats(body: bytes) -> ConsumeStats:
    """A group's progress at one broker. Raises RemoteProtocolError."""
    return read("a group's statistics", body, _consume_stats)


def _consume_stats(said: dict[str, Any]) -> ConsumeStats:
    offsets = {
        queue_of_key(key): ConsumeOffsets(
            number_of(one, "brokerOffset"),
            number_of(one, "consumerOffset"),
            number_of(one, "pullOffset"),
            number_of(one, "lastTimestamp"),
        )
        for key, one in map_of(said, "offsetTable").items()
    }
    return ConsumeStats(offsets, float(said.get("consumeTps") or 0))


def encode_consumer_offsets(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> bytes:
    """Answer to GET_ALL_CONSUMER_OFFSET: by topic and group, then by queue id."""
    table = {
        f"{topic}{SEPARATOR}{group}": {str(queue): offset for queue, offset in queues.items()}
        for (topic, group), queues in offsets.items()
    }
    return orjson.dumps({"offsetTable": table})


def decode_consumer_offsets(body: bytes) -> dict[tuple[str, str], dict[int, int]]:
    """Every offset that a broker keeps: by topic and group, then by queue id. Raises RemoteProtocolError."""
    return read("the consumer offsets", body, _consumer_offsets)


def _consumer_offsets(said: dict[str, Any]) -> dict[tuple[str, str], dict[int, int]]:
    offsets = {}
    for key, queues in map_of(said, "offsetTable").items():
        topic, at, group = key.partition(SEPARATOR)
        if at and isinstance(queues, dict):
            offsets[topic, group] = {int(queue): whole(offset) for queue, offset in queues.items()}
    return offsets


def encode_reset_offsets(offsets: Mapping[tuple[str, str, int], int]) -> bytes:
    """RESET_CONSUMER_CLIENT_OFFSET."""
    return orjson.dumps({"offsetTable": {queue_key(queue): offset for queue, offset in offsets.items()}})


def decode_reset_offsets(body: bytes) -> dict[Queue, int]:
    """RESET_CONSUMER_CLIENT_OFFSET: a map for Java clients, a list for C ones. Raises RemoteProtocolError."""
    return read("the offsets to reset to", body, _reset_offsets)


def _reset_offsets(said: dict[str, Any]) -> dict[Queue, int]:
    table = said.get("offsetTable")
    if isinstance(table, list):
        return _reset_list(table)
    return {queue_of_key(key): whole(offset) for key, offset in map_of(said, "offsetTable").items()}


def _reset_list(table: Iterable[dict[str, Any]]) -> dict[Queue, int]:
    return {queue_of(one): number_of(one, "offset") for one in table}
