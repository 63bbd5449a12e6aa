"""Commits of clients for a partition that has just come back to this gateway."""

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.groups.store import GroupKey
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.queue_feed import QueueFeed
from tests.listener.scripted_source import FORMAT, PARTITION, ScriptedSource

KEY = GroupKey("app", "log", "t", "0", "g")
COMMITTED = 7


def attached(committed: int | None) -> tuple[QueueFeed, ScriptedSource]:
    """Return a feed that has just got a partition in which the group has committed this number."""
    source = ScriptedSource()
    source.store(*[0] * 20)
    source.committed = source.next = committed or 0

    async def find_begin() -> int | None:
        return committed

    async def find_bounds() -> tuple[int, int]:
        return 0, source.end

    feed = QueueFeed(KEY, FORMAT, OffsetNumbering(), FeedLimits(UnacknowledgedBytes(1 << 20), 100), find_begin, find_bounds)
    feed.attach(source)
    assert feed.key.partition == PARTITION.name
    return feed, source


async def test_a_commit_before_the_first_pull_moves_no_group_back() -> None:
    feed, source = attached(COMMITTED)
    await feed.advance((3,))
    assert (feed.committed, source.committed) == (COMMITTED, COMMITTED)
    taken = await feed.read(COMMITTED, 100, 1 << 20, may_skip=False)
    assert taken.numbers[0] == COMMITTED
    await feed.detach()


async def test_a_commit_before_the_first_pull_moves_a_group_forward() -> None:
    for committed in (COMMITTED, None):
        feed, source = attached(committed)
        await feed.advance((9,))
        assert (feed.committed, source.committed) == (9, 9)
        await feed.detach()
