"""Workarounds for brokers before 5.0, which are recognized by the version in their responses.

- Their search by time returns the message nearest to the time: possibly one before it, or any of several in one millisecond.
  `find_offset_at` searches among the messages instead.
- For a group without a committed offset in a queue they return offset 0 as long as the queue's first message is in memory.
  `topics_with_offsets` shows whether the group has committed any.
- They delay messages only by levels (`delay_levels`); a message with a delivery time, which 5.x brokers honor, is delivered at
  once.
"""

import logging

from mqbridge.errors import RemoteProtocolError, ServerRefused
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.wire.bodies.offsets import ConsumeStats
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.broker_settings import decode_settings
from mqbridge.rocketmq.wire.codes import V5_0_0, Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.groups import ConsumeStatsHeader
from mqbridge.rocketmq.wire.headers.pull import READER_GROUP, PullFlag, PullHeader
from mqbridge.rocketmq.wire.record import decode_records
from mqbridge.rocketmq.wire.tags import TAG
from mqbridge.wire.limits import is_number, shorten

log = logging.getLogger(__name__)

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The default of a broker's `messageDelayLevel`."""
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PULL_CODES = frozenset({Status.SUCCESS, Status.PULL_NOT_FOUND, Status.PULL_RETRY_IMMEDIATELY, Status.PULL_OFFSET_MOVED})
"""Response codes of a pull that a broker has processed; only SUCCESS comes with messages."""


def is_old(response: Command) -> bool:
    """Return True if the response is from a 4.x server."""
    return response.version < V5_0_0


async def delay_levels(client: BaseClient, address: str) -> tuple[int, ...]:
    """Return the broker's delays (ms) from level 1 on; empty for a 5.x broker, which delays messages until any time.

    A broker that refuses to return its settings counts as a 5.x broker. Raises ClusterError, also if it denies us access
    (AccessRefused), and RemoteProtocolError for an invalid level.
    """
    try:
        response = await client.request(address, Code.GET_BROKER_CONFIG)
    except AccessRefused:
        raise
    except ServerRefused as error:
        log.info("broker %s refuses to return its settings, assuming version 5.x: %s", address, error)
        return ()
    if not is_old(response):
        return ()
    texts = (decode_settings(response.body).get("messageDelayLevel") or LEVELS).split()
    levels = tuple(_milliseconds(text, address) for text in texts)
    log.warning(
        "broker %s is older than 5.0: each delay is rounded up to the next of its %d levels, %d s at most",
        address,
        len(levels),
        max(levels) // 1000,
    )
    return levels


def _milliseconds(text: str, address: str) -> int:
    """Parse a duration like `10s` from the settings of the broker at `address`. Raises RemoteProtocolError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_MS or not is_number(number):
        raise RemoteProtocolError(
            f"messageDelayLevel of broker {address} contains {shorten(text, 40)!r}, which is no duration like 10s"
        )
    return int(number) * _UNITS_MS[unit]


async def find_offset_at(
    client: BaseClient, address: str, queue: Queue, timestamp: int, first: int, next_: int, *, upper: bool
) -> int:
    """Return the first offset whose message was stored at `timestamp` (ms) or later, `next_` if there is none.

    With `upper`, return the last offset whose message was stored at `timestamp` or earlier, `first` if there is none. `first` and
    `next_` are the queue's first offset and the offset after its last message. Each step of the binary search is a pull.
    """
    low, high = first, next_
    while low < high:
        middle = (low + high) // 2
        stored = await _stored_at(client, address, queue, middle)
        if stored < timestamp or (upper and stored == timestamp):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, first) if upper else low


async def _stored_at(client: BaseClient, address: str, queue: Queue, offset: int) -> int:
    """Return the store time of a message (ms); -1 if there is none, because a deleted message is older than all others."""
    header = PullHeader(
        READER_GROUP,
        queue.topic,
        queue.id,
        offset,
        max_msg_nums=1,
        sys_flag=PullFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type=TAG,
    )
    response = await client.request(address, Code.PULL_MESSAGE, header.encode(), accept=_PULL_CODES)
    records = decode_records(response.body) if response.code == Status.SUCCESS else []
    return records[0].store_timestamp if records else -1


async def topics_with_offsets(client: BaseClient, address: str, group: str) -> set[str]:
    """Return the topics in which the group has committed offsets at this broker.

    4.x brokers have no request for these topics; the group's statistics, requested without a topic, contain them.
    """
    response = await client.request(address, Code.GET_CONSUME_STATS, ConsumeStatsHeader(group).encode())
    return {queue.topic for queue in ConsumeStats.decode(response.body).offsets}
