"""Reads stored messages by position, for pages that show them."""

import asyncio

from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Position
from mqbridge.pulsar.server.web.context import WebContext

READ_S = 10.0
"""Time to read what a page shows."""
READER_NAME = "web"
MAX_UNITS = 1000
"""Maximum number of units that a request may read to show one."""
MAX_SHOWN_BYTES = 8 << 20
"""Bytes that are taken at once, except for a single larger unit."""


async def read_units(context: WebContext, topic: ListenedTopic, partition: int, begin: Position, count: int) -> list[Delivered]:
    """Return up to `count` units from a position on, fewer if the partition ends. Raises ClusterError, TimeoutError.

    Of each but the last one, only the numbers are kept.
    """
    partitions = context.services.partitions
    end = (await partitions.bounds(topic, partition)).next
    found: list[Delivered] = []
    if begin >= end:
        return found
    wake = asyncio.Event()
    feed = await partitions.open_reader(topic, partition, begin, READER_NAME)
    stop = feed.watch(wake.set)
    try:
        async with asyncio.timeout(READ_S):
            while len(found) < count and (not found or found[-1].end < end):
                wake.clear()
                if not (taken := feed.take(1, MAX_SHOWN_BYTES)):
                    if not feed.is_held:
                        raise ClusterError(feed.problem or "the partition cannot be read now", Failure.RETRY)
                    await wake.wait()
                for delivered in taken:
                    found.append(delivered)
                    if len(found) < count and delivered.end < end:
                        feed.acknowledge(delivered)
    finally:
        stop()
        await feed.detach()
    return found
