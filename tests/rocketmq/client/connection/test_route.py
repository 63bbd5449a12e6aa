"""Routes with impossible numbers of queues are refused before the queues are made; a large cluster is accepted."""

import tracemalloc
from typing import Any

import orjson
import pytest

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.client.connection.route import MAX_QUEUES, read_route
from mqbridge.wire.limits import MAX_PARTITIONS


def route_of(brokers: int, queues: int, **members: Any) -> bytes:
    names = [f"broker-{number}" for number in range(brokers)]
    return orjson.dumps(
        {
            "queueDatas": [{"brokerName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6} for name in names],
            "brokerDatas": [{"brokerName": name, "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}} for name in names],
            **members,
        }
    )


@pytest.mark.parametrize(
    "body",
    [
        route_of(100, MAX_QUEUES),
        route_of(1, 1_000_000),
        route_of(1, 1, orderTopicConf=";".join([f"broker-0:{MAX_QUEUES}"] * 100)),
        route_of(1, 1, orderTopicConf="broker-0:" + "9" * 5000),
    ],
    ids=["many brokers", "one broker", "order configuration", "many digits"],
)
def test_more_queues_than_a_cluster_can_have_are_refused(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=r"at most|maximum") as raised:
            read_route("orders", body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(body) + (1 << 20)
    assert len(str(raised.value)) < 1000


def test_a_large_cluster_is_accepted() -> None:
    assert len(read_route("orders", route_of(50, 400)).read_queues()) == 20_000 < MAX_PARTITIONS
