"""`max_bytes` limits the bytes that all lanes of an inbound hold together, for any number of lanes."""

import asyncio
from datetime import UTC
from types import SimpleNamespace
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.message import Batch, Partition
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.config import TubeMQCluster
from mqbridge.tubemq.adapter.inbound import TubeMQLane
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, TransferedMessage
from mqbridge.tubemq.wire.string_formats import Broker, PartitionRef
from tests.kit.conversation import until
from tests.tubemq.client.consumer.test_held_partitions import AnyBroker
from tests.tubemq.client.fakes import MasterScript
from tests.tubemq.client.quick import shorten_pauses

LANES = 300
PACK_BYTES = 512 << 10


class FullBroker(AnyBroker):
    """A Broker that responds to every get request with a full pack."""

    def __init__(self) -> None:
        super().__init__()
        message = TransferedMessage(messageId=1, checkSum=0, payLoadData=bytes(PACK_BYTES), flag=0)
        found = GetMessageResponseB2C(success=True, errCode=200, errMsg="OK", messages=[message], currOffset=0, maxOffset=10**6)
        self._found = found.SerializeToString()

    async def request(self, service: int, method: int, body: bytes) -> bytes:
        if method == rpc.GET:
            await asyncio.sleep(0)
            return self._found
        return await super().request(service, method, body)


@pytest.fixture
def masters() -> MasterScript:
    return MasterScript()


@pytest.mark.parametrize("max_bytes", [1 << 20, 16 << 20])
async def test_max_bytes_limits_all_lanes_together(
    masters: MasterScript, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_pauses(monkeypatch)
    broker = FullBroker()
    masters.connections = SimpleNamespace(connection_to=lambda *_: broker)  # type: ignore[assignment]
    cluster = TubeMQ("c", TubeMQCluster(masters=("10.0.0.1",)))
    cluster._routes = SimpleNamespace(masters=masters, is_alone=lambda _: False)  # type: ignore[assignment]
    member = cluster._consumer(InboundSpec(("demo",), "g", max_bytes=max_bytes))
    member.membership.client_id = "c1"
    held = member.held_partitions
    held.master_seen_at = asyncio.get_running_loop().time() + 1e6
    at = Broker(1, "10.0.0.5", 8123)
    lanes = [
        TubeMQLane(await held.acquire(PartitionRef(at, "demo", n)), Partition("c", "demo", f"1:{n}", n), UTC)
        for n in range(LANES)
    ]
    waiting: dict[int, Batch] = {}
    core = asyncio.Semaphore(0)
    most, done = 0, 0

    async def deliver(number: int, lane: TubeMQLane) -> None:
        """Wait for the route's byte budget while holding a batch, as a route does when its target is slow."""
        nonlocal most, done
        batch = waiting[number] = await lane.receive()
        most = max(most, sum(one.held_bytes for one in waiting.values()))
        await core.acquire()
        del waiting[number]
        if number % 3 == 0:
            lane.acknowledge(batch)
        elif number % 3 == 1:
            lane.reject(batch)
        else:
            asking: asyncio.Task[Any] = spawn(lane.receive(), "test asks for the next", log_errors=False)
            await asyncio.sleep(0)
            await cancel(asking)
        done += 1

    tasks = [spawn(deliver(number, lane), "test lane") for number, lane in enumerate(lanes)]
    for number in range(LANES):
        await until(lambda: bool(waiting))
        core.release()
        await until(lambda number=number: done == number + 1)
    await asyncio.gather(*tasks)
    assert PACK_BYTES <= most <= max_bytes
    assert most > max_bytes - GET_BYTES - PACK_BYTES, "and all of it is used"
    assert not held.budget.used
