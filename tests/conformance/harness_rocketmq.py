"""A real RocketMQ for the suite."""

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager
from uuid import uuid4

from mqbridge.adapter.cluster import Cluster
from mqbridge.rocketmq.adapter.registration import ADAPTER
from tests.conformance import network_faults
from tests.conformance.harness import Room
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import OPERATES
from tests.strategies import COMPARED_FIELDS


class RocketMQHarness:
    name = "rocketmq"
    max_payload = 4 << 20
    carried = COMPARED_FIELDS
    confirms_messages = True
    finds_last = True
    room = Room.EXACT
    inbound_options = None
    refusing_options = None
    one_reader = True
    finds_times = True
    patience_s = 40.0

    def __init__(self, server: RocketMQ) -> None:
        self._server = server
        settings = {} if server.lock is None else server.lock.settings(OPERATES)
        self._config = ADAPTER.cluster_model(name_servers=server.name_server, heartbeat="2s", refresh="500ms", **settings)
        self._clients = itertools.count(1)

    def cluster(self) -> Cluster:
        return ADAPTER.make_cluster(f"rocketmq-{next(self._clients)}", self._config)

    async def topic(self, cluster: Cluster, partitions: int) -> str:
        return await asyncio.to_thread(self._server.take_topic, partitions)

    def unknown_topic(self) -> str:
        return f"none_{uuid4().hex[:8]}"

    async def settle(self) -> None:
        await asyncio.to_thread(self._server.settle)

    def cut_off(self) -> AbstractAsyncContextManager[None]:
        return network_faults.network()

    def close(self) -> None:
        pass
