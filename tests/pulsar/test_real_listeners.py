"""Brokers with `advertisedListeners`: a client outside of their network asks for the addresses of its listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from mqbridge import PulsarClient
from mqbridge.errors import ClusterError
from tests.e2e.support import opened
from tests.kit.process import free_ports
from tests.kit.pulsar import Pulsar
from tests.kit.tcp_proxy import Link
from tests.kit.web import call
from tests.net.fake_dns import make_unreachable
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster

HOST = "127.0.0.1"
INSIDE, OUTSIDE = "inside", "outside"


class TwoNetworks(NamedTuple):
    """A broker with two listeners: the address of `inside` cannot be reached from here, that of `outside` is a forwarder's."""

    inside_port: int
    outside_port: int

    @property
    def outside_url(self) -> str:
        return f"pulsar://{HOST}:{self.outside_port}"


@pytest.fixture(scope="module")
def ports() -> Iterator[TwoNetworks]:
    (outside_port,) = free_ports(1)
    pulsar = Pulsar()
    listeners = f"{INSIDE}:pulsar://{HOST}:{pulsar.port},{OUTSIDE}:pulsar://{HOST}:{outside_port}"
    settings = pulsar.folder / "standalone.conf"
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("advertisedAddress")]
    lines += [f"advertisedListeners={listeners}", f"internalListenerName={INSIDE}"]
    settings.write_text("\n".join(lines) + "\n")
    argv = pulsar.server.argv
    index = argv.index("--advertised-address")
    del argv[index : index + 2]
    pulsar.server._ready = lambda: call(f"{pulsar.admin_url}/admin/v2/namespaces/public/default")[0] == 200
    try:
        pulsar.start()
        yield TwoNetworks(pulsar.port, outside_port)
    finally:
        pulsar.kill()


@pytest_asyncio.fixture
async def broker(ports: TwoNetworks, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwoNetworks]:
    link = Link((HOST, ports.inside_port))
    listening = await asyncio.start_server(link.serve, HOST, ports.outside_port)
    make_unreachable(monkeypatch, [ports.inside_port])
    yield ports
    listening.close()
    link.cut()
    while link.connections:
        await asyncio.sleep(0)


async def test_the_client_uses_the_addresses_of_its_listener(broker: TwoNetworks) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        async with PulsarClient(broker.outside_url, listener_name=OUTSIDE) as client:
            async with client.producer("orders") as producer:
                await producer.send(b"hello")
            async with client.consumer("orders", group="g") as consumer:
                async for message in consumer:
                    assert message.payload == b"hello"
                    consumer.acknowledge(message)
                    break
        config = {"service_url": broker.outside_url, "listener_name": OUTSIDE}
        async with opened("pulsar", config) as cluster:
            assert all(bounds.next > bounds.first for bounds in (await cluster.bounds("orders")).values())


async def test_without_a_listener_the_broker_names_its_internal_address(broker: TwoNetworks) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        async with PulsarClient(broker.outside_url, operation_timeout_s=3.0) as client:
            with pytest.raises(ClusterError, match=f"{HOST}:{broker.inside_port} cannot be reached"):
                await client.producer("orders")


async def test_the_map_of_addresses_replaces_a_listener(broker: TwoNetworks) -> None:
    addresses = {f"{HOST}:{broker.inside_port}": f"{HOST}:{broker.outside_port}"}
    async with asyncio.timeout(SERVER_PATIENCE_S):
        async with PulsarClient(broker.outside_url, addresses=addresses) as client, client.producer("orders") as producer:
            await producer.send(b"hello")


async def test_an_unknown_listener_is_an_error_that_names_it(broker: TwoNetworks) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        async with PulsarClient(broker.outside_url, listener_name="elsewhere", operation_timeout_s=3.0) as client:
            with pytest.raises(ClusterError, match="elsewhere"):
                await client.producer("orders")
