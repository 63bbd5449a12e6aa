"""A real TubeMQ for the suite."""

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager
from uuid import uuid4

from mqbridge.adapter.cluster import Cluster
from mqbridge.tubemq.adapter.registration import ADAPTER
from tests.conformance import network_faults
from tests.conformance.harness import Room
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import TOKEN
from tests.strategies import COMPARED_FIELDS


class TubeMQHarness:
    name = "tubemq"
    max_payload = (1 << 20) - (4 << 10)
    """The Broker's limit is 1 MiB; attributes and stamps come on top of the body."""
    carried = COMPARED_FIELDS
    confirms_messages = False
    finds_last = False
    room = Room.EXACT
    inbound_options = None
    refusing_options = None
    one_reader = True
    finds_times = False
    patience_s = 40.0

    def __init__(self, server: TubeMQ) -> None:
        self._server = server
        self._config = ADAPTER.cluster_model(
            masters=server.masters,
            admin_url=server.admin_url.removesuffix("/webapi.htm"),
            admin_token=TOKEN,
            heartbeat="500ms",
            **server.keys,
        )
        self._clients = itertools.count(1)

    def cluster(self) -> Cluster:
        return ADAPTER.make_cluster(f"tubemq-{next(self._clients)}", self._config)

    async def topic(self, cluster: Cluster, partitions: int) -> str:
        return await asyncio.to_thread(self._server.take_topic, partitions)

    def unknown_topic(self) -> str:
        return f"none_{uuid4().hex[:8]}"

    async def settle(self) -> None:
        pass

    def cut_off(self) -> AbstractAsyncContextManager[None]:
        return network_faults.network()

    def close(self) -> None:
        pass
