"""A lane near the end of its topic: whether it has caught up, and that it delivers entries during the check."""

import asyncio
from typing import Any

import pytest

from mqbridge.message import Partition
from mqbridge.pulsar.adapter import end_check
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, ends_at, scripted_client, success, until

TOPIC = "persistent://public/default/t"
LAST = BaseCommand.GET_LAST_MESSAGE_ID


@pytest.fixture
async def lane(broker: Broker):
    client = scripted_client()
    consumer = await client.consumer(TOPIC, Subscription("g"))
    lane = PulsarLane(Partition("c", "t", "-1", 0), consumer, 1 << 20, 1 << 20)
    yield lane
    await lane.release()
    await client.close()


async def test_entries_that_arrive_during_an_end_check_are_delivered(broker: Broker, lane: PulsarLane):
    broker.on[LAST] = lambda *_: None
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: len(broker.asked[LAST]) == 1)
    broker.link.message(0, 1, 0, b"x")
    assert (await asyncio.wait_for(waiting, PATIENCE_S)).data[0].id == (1, 0)
    assert not lane.caught_up


async def test_a_response_older_than_received_entries_is_ignored(broker: Broker, lane: PulsarLane):
    held: list[tuple] = []
    broker.on[LAST] = lambda *asked: held.append(asked)
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: bool(held))
    broker.link.message(0, 1, 0, b"x")
    await asyncio.wait_for(waiting, PATIENCE_S)
    broker.on[LAST] = ends_at(1, 1)
    ends_at(-1, -1)(*held[0])
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: len(broker.asked[LAST]) == 2)
    assert not lane.caught_up
    broker.on[LAST] = ends_at(1, 1)
    broker.link.message(0, 1, 1, b"y")
    await asyncio.wait_for(waiting, PATIENCE_S)
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: lane.caught_up)
    broker.link.message(0, 1, 2, b"z")
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert not lane.caught_up


async def test_an_end_check_from_before_a_seek_is_ignored(broker: Broker, lane: PulsarLane):
    """`receive` is cancelled in the loop iteration in which its check began, and the lane seeks in the same iteration."""
    broker.link.message(0, 1, 0, b"x")
    broker.link.message(0, 1, 1, b"y")
    lane.acknowledge(await asyncio.wait_for(lane.receive(), PATIENCE_S))
    seen: list[bool] = []

    async def answer(*sought: Any) -> None:
        await until(lambda: bool(broker.asked[LAST]))
        await asyncio.sleep(0)
        seen.append(lane.caught_up)
        success(*sought)

    answers: list[asyncio.Task[None]] = []
    broker.on[LAST] = ends_at(1, 1)
    broker.on[BaseCommand.SEEK] = lambda *sought: answers.append(asyncio.ensure_future(answer(*sought)))
    waiting = asyncio.ensure_future(lane.receive())
    await asyncio.sleep(0)
    waiting.cancel()
    await lane.seek((1, 0))
    assert seen == [False]
    assert not lane.caught_up


async def test_a_lost_connection_ends_being_caught_up_until_the_next_check(broker: Broker, lane: PulsarLane):
    broker.on[LAST] = ends_at(-1, -1)
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: lane.caught_up)
    broker.on[LAST] = lambda *_: None
    broker.link.drop()
    await until(lambda: not lane.caught_up)
    await until(lambda: lane._consumer.registrations == 2)
    assert not lane.caught_up
    broker.on[LAST] = ends_at(-1, -1)
    broker.link.drop()
    await until(lambda: lane.caught_up)
    assert await lane.confirm_caught_up()
    broker.on[LAST] = ends_at(1, 0)
    assert not await lane.confirm_caught_up()
    waiting.cancel()


async def test_a_bug_in_an_end_check_reaches_the_reading_task(lane: PulsarLane, monkeypatch: pytest.MonkeyPatch):
    async def broken() -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(lane._consumer, "has_more", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(lane.receive(), PATIENCE_S)


async def test_no_end_check_while_a_redelivery_is_expected(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """The topic's newest entry was delivered and rejected on a shared subscription."""
    monkeypatch.setattr(end_check, "REDELIVERY_WAIT_S", 1e6)
    broker.on[LAST] = ends_at(1, 0)
    client = scripted_client()
    lane = PulsarLane(
        Partition("c", "t", "-1", 0), await client.consumer(TOPIC, Subscription("g", Types.Shared)), 1 << 20, 1 << 20
    )
    broker.link.message(0, 1, 0, b"x")
    lane.reject(await asyncio.wait_for(lane.receive(), PATIENCE_S), (), 0.0)
    asked = len(broker.asked[LAST])
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: bool(broker.asked[BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES]))
    await asyncio.sleep(2 * end_check.MIN_INTERVAL_S)
    assert len(broker.asked[LAST]) == asked
    assert not lane.caught_up
    broker.link.message(0, 1, 0, b"x")
    lane.acknowledge(await asyncio.wait_for(waiting, PATIENCE_S))
    await lane.release()
    await client.close()
