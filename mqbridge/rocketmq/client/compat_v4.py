"""What brokers before 5.0 do otherwise, and how to get the right answer from them all the same.

Every answer says the version of who answered. These brokers look a time up by halves and give the message that is nearest to it,
which may be one before it or, of several of the same millisecond, one in the middle. And of a group that never committed they say
0 while a queue's first message is still in memory. They hold messages by levels, and deliver those with a timer at once.
"""

import logging

from mqbridge.errors import RemoteProtocolError, ServerRefused
from mqbridge.rocketmq.client.access import AccessRefused
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.spec import READER_GROUP
from mqbridge.rocketmq.wire.bodies.offsets import ConsumeStats
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import V5_0_0, Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.groups import ConsumeStatsHeader
from mqbridge.rocketmq.wire.headers.pulling import PullFlag, PullHeader
from mqbridge.rocketmq.wire.record import decode_records
from mqbridge.rocketmq.wire.settings import decode_settings
from mqbridge.rocketmq.wire.tags import TAG

log = logging.getLogger(__name__)

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""messageDelayLevel as shipped."""
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ANSWERS = frozenset({Status.SUCCESS, Status.PULL_NOT_FOUND, Status.PULL_RETRY_IMMEDIATELY, Status.PULL_OFFSET_MOVED})


def is_old(answer: Command) -> bool:
    """Whether who answered is a server of 4.x."""
    return answer.version < V5_0_0


async def delay_levels(client: BaseClient, address: str) -> tuple[int, ...]:
    """The delays (ms) that the broker knows, from level 1 on; none of one that holds messages until any time.

    One that refuses to tell its settings counts as such. Raises ClusterError.
    """
    try:
        answer = await client.request(address, Code.GET_BROKER_CONFIG)
    except AccessRefused:
        raise
    except ServerRefused as error:
        log.info("%s does not tell its settings, so it is taken to be one of 5.x: %s", address, error)
        return ()
    if not is_old(answer):
        return ()
    levels = tuple(_milliseconds(text) for text in (decode_settings(answer.body).get("messageDelayLevel") or LEVELS).split())
    log.warning(
        "%s is a broker before 5.0: messages that are to be held wait for the next of its %d levels, %d s at most",
        address,
        len(levels),
        max(levels) // 1000,
    )
    return levels


def _milliseconds(text: str) -> int:
    """Like `10s`. Raises RemoteProtocolError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_MS or not number.isdecimal():
        raise RemoteProtocolError(f"a broker's messageDelayLevel has {text!r}")
    return int(number) * _UNITS_MS[unit]


async def find_time(
    client: BaseClient, address: str, queue: Queue, timestamp: int, first: int, next_: int, *, upper: bool
) -> int:
    """The first offset from `first` on whose message was stored at `timestamp` (ms) or later, `next_` if there is none.

    `upper`: the last one that was stored until then. A pull for each halving.
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
    """When the message was stored; -1 for one that was deleted meanwhile, as it is older than all others."""
    header = PullHeader(READER_GROUP, queue.topic, queue.id, offset, 1, PullFlag.SUBSCRIPTION, 0, 0, 0, "*", TAG)
    answer = await client.request(address, Code.PULL_MESSAGE, header.encode(), accept=_ANSWERS)
    records = decode_records(answer.body) if answer.code == Status.SUCCESS else []
    return records[0].store_timestamp if records else -1


async def topics_with_offsets(client: BaseClient, address: str, group: str) -> set[str]:
    """The topics that the group ever committed in at this broker: its statistics are of these, when no topic is named."""
    answer = await client.request(address, Code.GET_CONSUME_STATS, ConsumeStatsHeader(group).encode())
    return {queue.topic for queue in ConsumeStats.decode(answer.body).offsets}
