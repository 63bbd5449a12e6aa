"""Withdrawn requests are never stored, their receipts come at once, and other sends continue."""

import asyncio

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import Failure
from mqbridge.message import Batch, Share
from tests.conformance.arena import SOURCE, Arena, fresh_group, numbered, numbers

EACH = 3
"""Messages of one send."""


def send(outbound: Outbound, first: int) -> "asyncio.Future[Receipt]":
    return outbound.send(0, Share(Batch.of(numbered(first, first + EACH), SOURCE)))


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after a while"])
async def test_unsent_requests_are_withdrawn(arena: Arena, cluster: Cluster, later: bool) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    before = send(outbound, 0)
    await arena.within(before)
    cut_off = arena.harness.cut_off()
    if cut_off is None:
        assert send(outbound, EACH).done(), "an adapter whose sends can wait for something needs a harness that makes them"
        return
    async with cut_off:
        mine, others = [], []
        for index in range(1, 9):
            (mine if index % 2 else others).append(send(outbound, index * EACH))
        if later:
            await asyncio.sleep(0.5)  # it is tried, and fails
        assert not any(one.done() for one in (*mine, *others))
        outbound.withdraw([*mine, before])
        for receipt in await arena.within(asyncio.gather(*mine)):
            assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [
                (n, Failure.RETRY) for n in range(EACH)
            ]
            assert receipt.highest_position == ()
        assert not any(one.done() for one in others)
    for receipt in await arena.within(asyncio.gather(*others)):
        assert receipt.failures == []
    await arena.send(outbound, 0, numbered(100, 101))
    expected = [*range(EACH), *(n for index in range(2, 9, 2) for n in range(index * EACH, index * EACH + EACH)), 100]
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, len(expected))
    assert numbers(received) == expected


async def test_receipts_of_withdrawn_sends_on_the_wire_are_correct(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    sends = [send(outbound, index * EACH) for index in range(20)]
    outbound.withdraw(sends[:5])
    await asyncio.sleep(0)
    outbound.withdraw(sends[5:10])
    outbound.withdraw([])
    receipts = await arena.within(asyncio.gather(*sends))
    outbound.withdraw(sends)
    assert all(not receipt.failures for receipt in receipts[10:]), "the sends of others go on"
    expected: list[int] = []
    for index, receipt in enumerate(receipts):
        assert {failure.failure_kind for failure in receipt.failures} <= {Failure.RETRY}
        failed = {failure.index for failure in receipt.failures}
        expected += [index * EACH + n for n in range(EACH) if n not in failed]
    await arena.send(outbound, 0, numbered(100, 101))
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, len(expected) + 1)
    assert numbers(received) == [*expected, 100]
