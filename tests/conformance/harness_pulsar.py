"""A real Pulsar for the suite."""

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager
from uuid import uuid4

from mqbridge.adapter.cluster import Cluster
from mqbridge.pulsar.adapter.registration import ADAPTER
from tests.conformance import network_faults
from tests.conformance.harness import Room
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import GATEWAY, TENANT, LockedPulsar
from tests.strategies import COMPARED_FIELDS


class PulsarHarness:
    name = "pulsar"
    max_payload = (5 << 20) - (4 << 10)
    """The broker's limit is 5 MiB, including metadata and stamps."""
    carried = COMPARED_FIELDS
    refusing_options = ADAPTER.outbound_options.model_validate({"chunking": False})
    confirms_messages = False
    finds_last = True
    room = Room.DIVIDED
    finds_times = True
    keeps_foreign_units = False
    """Units of a sender are stored as they are only if their metadata have its name and its sequence ids."""
    patience_s = 30.0
    tenant = "conformance"
    """Tenant in which the client may use every namespace."""

    def __init__(self, server: Pulsar, subscription_type: str = "failover") -> None:
        self.one_reader = subscription_type != "shared"
        self.inbound_options = ADAPTER.inbound_options.model_validate({"subscription_type": subscription_type})
        self._config = ADAPTER.cluster_model.model_validate(self._settings(server) | {"refresh": "500ms"})
        self._server, self._clients = server, itertools.count(1)

    def _settings(self, server: Pulsar) -> dict[str, object]:
        return {"service_url": server.service_url, "admin_url": server.admin_url}

    def cluster(self) -> Cluster:
        return ADAPTER.make_cluster(f"pulsar-{next(self._clients)}", self._config)

    async def topic(self, cluster: Cluster, partitions: int, prefix: str = "") -> str:
        name = f"{prefix}conformance-{uuid4().hex[:8]}"
        await cluster.create(name, partitions)
        return name

    async def deduplicated_topic(self, cluster: Cluster, partitions: int) -> str:
        """Make a topic whose brokers record the sequence ids of senders, which units have only beside them."""
        namespace = await asyncio.to_thread(self._server.create_namespace, self.tenant, f"senders-{uuid4().hex[:8]}")
        await asyncio.to_thread(self._server.admin, "POST", f"namespaces/{namespace}/deduplication", True)
        return await self.topic(cluster, partitions, f"{namespace}/")

    def unknown_topic(self) -> str:
        return f"none-{uuid4().hex[:8]}"

    async def settle(self) -> None:
        pass

    def cut_off(self) -> AbstractAsyncContextManager[None]:
        return network_faults.network()

    def close(self) -> None:
        pass


class LockedPulsarHarness(PulsarHarness):
    """A server that requires TLS and credentials; the client is an administrator of one tenant only."""

    tenant = TENANT

    def __init__(self, server: LockedPulsar, name: str) -> None:
        self.name = name
        super().__init__(server)

    def _settings(self, server: Pulsar) -> dict[str, object]:
        assert isinstance(server, LockedPulsar)
        return server.config_of(GATEWAY, "token" if self.name.endswith("token") else "tls")
