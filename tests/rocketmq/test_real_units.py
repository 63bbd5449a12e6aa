"""Records that clients have stored one by one, delayed or compressed pass to another topic of a real broker as they are."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.formats import batch_of_units
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.message import Batch, Share, Unit
from mqbridge.rocketmq.adapter.cluster import RocketMQ
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.mapping.unit_format import FORMATS
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.neutral_record import ADDED_NAMES, encode_neutral
from mqbridge.rocketmq.wire.record import SysFlag, decode_records
from tests.kit.rocketmq import RocketMQ as Server
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture(params=["rocketmq", pytest.param("rocketmq_old", marks=pytest.mark.thorough)])
async def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest_asyncio.fixture
async def cluster(server: Server) -> AsyncIterator[RocketMQ]:
    cluster = ADAPTER.make_cluster("r", ADAPTER.cluster_model(name_servers=server.name_server, refresh="500ms"))
    assert isinstance(cluster, RocketMQ)
    await cluster.connect()
    yield cluster
    await cluster.close()


async def read_all(cluster: RocketMQ, topic: str, count: int) -> list[Batch]:
    """Wait until the topic has this many messages, and return them."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while True:
            ((name, bounds),) = (await cluster.bounds(topic)).items()
            if bounds.message_count == count:
                return [batch async for batch in read(cluster, topic, name, bounds.first, bounds.next)]
            await asyncio.sleep(0.05)


def units_of(batches: list[Batch]) -> list[Unit]:
    return [unit for batch in batches for unit in batch.units or ()]


async def test_what_clients_have_stored_passes_as_it_is(server: Server, cluster: RocketMQ) -> None:
    topics = [await asyncio.to_thread(server.take_topic, 1) for _ in range(3)]
    producer = cluster._client.producer("P", topics[0])
    (queue,) = await producer.queues()
    block = properties.encode([("TAGS", "t"), ("KEYS", "k1 k2"), ("WAIT", "true"), ("z", "1"), ("b", "2"), ("a", "3")])
    await producer.send_single(queue, b"plain", block, flag=9, born=1_700_000_000_000)
    compressed = SysFlag.COMPRESSED
    await producer.send_single(queue, zlib.compress(b"x" * 5000), block, 0, compressed, 1_700_000_000_001)
    await producer.send_single(queue, b"delayed", block + b"DELAY\x011\x02", 0, 0, 1_700_000_000_002)
    await producer.close()
    original = await read_all(cluster, topics[0], 3)
    for topic in topics[1:]:
        outbound = await cluster.outbound(OutboundSpec(topic, keep_units=True))
        receipt = await outbound.send(0, Share(batch_of_units(FORMATS[0], units_of(original))))
        await outbound.close()
        assert receipt.failures == []
        copied = await read_all(cluster, topic, 3)
        assert [unit.data for unit in units_of(copied)] == [unit.data for unit in units_of(original)]
        original = copied  # the copies pass as they are, too
    (delayed,) = decode_records(units_of(original)[2].data)
    names = [name for name, _ in properties.decode(delayed.properties)]
    assert {"DELAY", "REAL_TOPIC", "WAIT"} <= {*names}
    assert len(names) == len({*names})
    assert not {*names} & {*ADDED_NAMES}


DELAY_ENTRIES = {
    "level": b"DELAY\x011\x02",
    "time": b"TIMER_DELAY_MS\x011500\x02",
    "none": b"",
}
ADDED_BY_DELAYS = {"UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "DELAY"}
"""Names of the properties that a broker adds when it delays a message, besides those of timers; DELAY at brokers before 5.0."""


async def test_units_of_a_share_with_a_time_are_delivered_then(server: Server, cluster: RocketMQ) -> None:
    """By the entries of their producers, or by the time of the share; nothing else acts, and nothing else changes."""
    kept = [("TAGS", "t"), ("KEYS", "k1 k2"), ("WAIT", "true"), ("z", "1"), ("b", "2"), ("a", "3")]
    block = properties.encode([*kept, ("TRAN_MSG", "true"), ("PGROUP", "p"), ("INNER_NUM", "3"), ("POP_CK", "1 2 3")])
    for name, entries in DELAY_ENTRIES.items():
        topic = await asyncio.to_thread(server.take_topic, 1)
        outbound = await cluster.outbound(OutboundSpec(topic, keep_units=True, stamp_origin=False))
        deliver_at = round(time.time() * 1000) + (1000 if name == "level" else 1500)
        data = encode_neutral(name.encode(), block + entries, flag=9, born_timestamp=1_700_000_000_000)
        share = Share(batch_of_units(FORMATS[0], [Unit(data, 1, None)]), deliver_at=deliver_at)
        receipt = await outbound.send(0, share)
        assert (list(receipt.failures), list(receipt.positions)) == ([], [()])
        ((_, bounds),) = (await cluster.bounds(topic)).items()
        assert bounds.message_count == 0
        (unit,) = units_of(await read_all(cluster, topic, 1))
        assert unit.published_ms is not None
        assert unit.published_ms >= deliver_at
        (record,) = decode_records(unit.data)
        assert (record.body, record.flag, record.born_timestamp) == (name.encode(), 9, 1_700_000_000_000)
        found = dict(properties.decode(record.properties))
        own = dict(properties.decode(block + entries))
        assert {key: value for key, value in found.items() if not key.startswith("TIMER_") and key not in ADDED_BY_DELAYS} == {
            key: value for key, value in own.items() if key in {*dict(kept), "PGROUP"}
        }
        assert not {"TRAN_MSG", "INNER_NUM", "POP_CK"} & found.keys()
        await outbound.close()
