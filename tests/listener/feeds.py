"""Feeds for tests: what a consumer sees of them, and waiting for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.groups.store import GroupKey, GroupStore
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.sources import FeedSource
from tests.listener.scripted_source import FORMAT
from tests.patience import PATIENCE_S

KEY = GroupKey("app", "log", "t", "0", "g")


def make_feed(store: GroupStore | None = None, *, limit: int = 1 << 20, span: int = 10_000) -> Feed:
    return Feed(KEY, FORMAT, OffsetNumbering(), store, FeedLimits(UnacknowledgedBytes(limit), span))


@asynccontextmanager
async def feeding(
    source: FeedSource, store: GroupStore | None = None, *, limit: int = 1 << 20, span: int = 10_000
) -> AsyncIterator[Feed]:
    feed = make_feed(store, limit=limit, span=span)
    feed.attach(source)
    try:
        yield feed
    finally:
        await feed.detach()
        assert feed._limits.unacknowledged.used == feed._limits.unacknowledged.open == 0


def numbers(delivered: Delivered) -> list[int]:
    """Return the numbers of the messages that are delivered with a unit: those that are not acknowledged."""
    return [delivered.number + bit for bit in range(delivered.count) if delivered.remaining >> bit & 1]


async def take(feed: Feed, messages: int, max_bytes: int = 1 << 20) -> list[Delivered]:
    """Take units until this many messages were taken, waiting for them."""
    taken: list[Delivered] = []
    wake = asyncio.Event()
    stop = feed.watch(wake.set)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (missing := messages - sum(len(numbers(each)) for each in taken)) > 0:
                wake.clear()
                found = feed.take(missing, max_bytes)
                taken += found
                if not found:
                    await wake.wait()
    finally:
        stop()
    return taken


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)
