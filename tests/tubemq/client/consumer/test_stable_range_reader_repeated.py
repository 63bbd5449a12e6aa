"""Repeated reading through the client: one group holds the partition once, and positions are stable."""

import asyncio
from contextlib import aclosing

import pytest

from mqbridge.adapter import reading
from mqbridge.message import Position
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.client.consumer import stable_range_reader
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from tests.patience import PATIENCE_S
from tests.tubemq.client import model as models
from tests.tubemq.client.model import STEP, Model

COUNT = 40


@pytest.fixture
def model() -> Model:
    made = Model({"demo": 1})
    for number in range(COUNT):
        made.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=b"%d" % number, flag=0))
    return made


async def read(cluster: TubeMQ, begin: Position, end: Position) -> list[tuple[int, Position]]:
    async with asyncio.timeout(PATIENCE_S):
        (name,) = (await cluster.bounds("demo")).keys()
        async with aclosing(reading.read(cluster, "demo", name, begin, end)) as batches:
            return [(int(m.payload or b""), m.position) async for batch in batches for m in batch.messages]


@pytest.mark.parametrize("cell", [1, 7, 8, 1000])
async def test_positions_do_not_depend_on_the_packs(
    cluster: TubeMQ, model: Model, monkeypatch: pytest.MonkeyPatch, cell: int
) -> None:
    monkeypatch.setattr(stable_range_reader, "CELL_ENTRIES", cell)
    end = (COUNT * STEP, 0)
    whole = await read(cluster, (0, 0), end)
    assert whole == [(number, (number // cell * cell * STEP, number % cell)) for number in range(COUNT)]
    for most in (1, 3, 100):
        monkeypatch.setattr(models, "MAX_PER_GET", most)
        assert await read(cluster, (0, 0), end) == whole
        for begin, last in ((0, 5), (6, 9), (13, 40), (39, 40)):
            until = whole[last][1] if last < COUNT else end
            assert await read(cluster, whole[begin][1], until) == whole[begin:last]
    assert not model.broker.owners
