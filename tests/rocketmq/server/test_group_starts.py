"""Where a new group begins to read."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from mqbridge.adapter.inbound import Start
from mqbridge.rocketmq.server import group_starts as module
from mqbridge.rocketmq.server.group_starts import find_start, is_young
from mqbridge.rocketmq.wire.bodies.groups import FROM_FIRST, FROM_LAST, FROM_TIMESTAMP
from tests.rocketmq.server.serving import PULL_HELD, bodies_of, serving, until


@pytest.mark.parametrize(
    ("name", "bounds", "consume_from", "start"),
    [
        ("a", (0, 5), FROM_LAST, Start.EARLIEST),
        ("a", (0, module.YOUNG_MESSAGES), FROM_LAST, Start.EARLIEST),
        ("a", (0, module.YOUNG_MESSAGES + 1), FROM_LAST, Start.LATEST),
        ("a", (1, 5), FROM_LAST, Start.LATEST),
        ("a", (1, 5), FROM_FIRST, Start.EARLIEST),
        ("a", (1, 5), "CONSUME_FROM_MIN_OFFSET", Start.EARLIEST),
        ("a", (1, 5), "CONSUME_FROM_MAX_OFFSET", Start.LATEST),
        ("a", (1, 5), FROM_TIMESTAMP, None),
        ("a", (0, 5), FROM_TIMESTAMP, Start.EARLIEST),
        ("%RETRY%g", (1, 5), FROM_LAST, Start.EARLIEST),
    ],
)
async def test_where_a_new_group_begins(name: str, bounds: tuple[int, int], consume_from: str, start: Start | None) -> None:
    async def find_bounds(*_: Any) -> Any:
        return SimpleNamespace(first=bounds[0], next=bounds[1])

    services: Any = SimpleNamespace(
        partitions=SimpleNamespace(bounds=find_bounds), numbering=SimpleNamespace(number=lambda number: number)
    )
    topic: Any = SimpleNamespace(name=name, partitions={0: "0"})
    found = await find_start(services, consume_from, topic)
    if start is None:
        assert isinstance(found, int)
        assert abs(time.time() - module.TIMESTAMP_S - found / 1000) < 60
    else:
        assert found is start


async def test_a_topic_is_young_as_long_as_all_its_queues_are() -> None:
    async with serving() as served:
        client = await served.connect()
        topic = await served.create(queues=2)
        assert await is_young(served.broker.services, topic)
        await client.store(b"a", b"b", queue=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "YOUNG_MESSAGES", 2)
            assert await is_young(served.broker.services, topic)
            await client.store(b"c")
            assert not await is_young(served.broker.services, topic)


async def test_a_new_group_that_wants_the_newest_messages_begins_at_the_end_of_an_old_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "YOUNG_MESSAGES", 1)
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"old", b"old")
        await client.join("t", consume_from=FROM_LAST)
        topic = await served.broker.readable_topic("t")
        await until(lambda: (feed := served.broker.feed_of("g", topic, 0)) is not None and feed.is_held)
        assert await client.committed() == 2
        waiting = client.start_pull(2, sys_flag=PULL_HELD)
        await client.store(b"new")
        answer = await client.answer(waiting)
        from mqbridge.rocketmq.wire.record import decode_records

        assert bodies_of(decode_records(answer.body)) == [b"new"]
