"""Brokers with `advertisedListeners`: a client outside of their network asks for the addresses of its listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from mqbridge import PulsarClient
from mqbridge.errors import ClusterError
from mqbridge.pulsar.client.connection.lookup import Lookup
from mqbridge.pulsar.client.connection.service_url import Address
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


async def test_the_broker_names_the_address_of_the_listener_that_is_asked_for(
    broker: TwoNetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standalone broker lets clients pass through its service address to the one that it names, so both are reached."""
    named: list[str] = []
    addresses = Lookup.addresses

    def record(self: Lookup, url: str, url_tls: str) -> list[Address]:
        named.append(url)
        return addresses(self, url, url_tls)

    monkeypatch.setattr(Lookup, "addresses", record)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        for listener in (None, OUTSIDE):
            async with PulsarClient(broker.outside_url, listener_name=listener) as client, client.producer("orders") as producer:
                await producer.send(b"hello")
    assert named == [f"pulsar://{HOST}:{broker.inside_port}", broker.outside_url]


async def test_an_unknown_listener_is_an_error_that_names_it(broker: TwoNetworks) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        async with PulsarClient(broker.outside_url, listener_name="elsewhere", operation_timeout_s=3.0) as client:
            with pytest.raises(ClusterError, match="elsewhere"):
                await client.producer("orders")
