"""Tokens and certificates are replaced under load at a real broker: nothing is lost, and a late renewal is logged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from mqbridge.cli.process.exit_codes import OK
from mqbridge.errors import ConnectionLost
from mqbridge.net.secret import Secret
from mqbridge.net.tasks import cancel, spawn
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.cluster_client import ClusterClient, Timing
from mqbridge.pulsar.client.connection.auth import TlsAuth, TokenAuth
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.authority import Authority
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar_locked import APP, LockedPulsar, exchange, write_atomically
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.locked import PARTITIONS, Mirror

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(300)]

SHORT_S = 4
"""Lifetime of the test's tokens; the broker checks for expired ones every second."""
RENEWALS = 3
SOON = timedelta(days=1)
PAUSE_S = 0.01


class CountingToken(TokenAuth):
    """Counts how often new credentials were requested."""

    fresh = 0

    async def credentials(self, *, fresh: bool = False) -> bytes:
        self.fresh += fresh
        return await super().credentials(fresh=fresh)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


class Traffic:
    """A producer and a consumer of one topic, and the numbers that they sent and received."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self.client, self.topic = client, topic
        self.sent: set[int] = set()
        self.received: list[int] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.producer = self.client.producer(self.topic)
        await self.producer.opened()
        self.consumer = await self.client.consumer(self.topic, Subscription("app", Types.Exclusive))
        over = False

        async def send() -> None:
            while not over:
                number = len(self.sent)
                await self.producer.send(MessageMetadata(), number.to_bytes(4))
                self.sent.add(number)
                await asyncio.sleep(PAUSE_S)

        async def receive() -> None:
            while True:
                entry = await self.consumer.receive()
                self.received.append(int.from_bytes(entry.payload))
                self.consumer.acknowledge_up_to(entry.id)

        tasks = [spawn(send(), "test sending"), spawn(receive(), "test receiving")]
        try:
            yield
            over = True
            await tasks[0]
            await until(lambda: set(self.received) >= self.sent)
        finally:
            await cancel(*tasks)
            await self.producer.close()
            await self.consumer.close()
            await self.client.close()

    async def reconnected(self) -> None:
        """Lose every connection, as when a broker restarts, and wait for the next registration."""
        registrations = self.producer.registrations
        for connection in list(self.client._pool._connections.values()):
            connection.endpoint.abort(ConnectionLost("cut by the test"))
        await until(lambda: self.producer.registrations > registrations)
        count = len(self.received)
        await until(lambda: len(self.received) > count + 20)


def client_of(server: LockedPulsar, tls: Tls, auth: TokenAuth | TlsAuth) -> ClusterClient:
    return ClusterClient(parse_service_url(server.service_url, tls=True), tls=tls, auth=auth, timing=Timing(operation=20.0))


@contextlib.asynccontextmanager
async def renewing(server: LockedPulsar, file: Path) -> AsyncIterator[None]:
    """Keep a token in the file that expires SHORT_S after the end of the `with` statement, or earlier."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(SHORT_S / 4)
            write_atomically(file, server.token(APP, SHORT_S))

    write_atomically(file, server.token(APP, SHORT_S))
    task = spawn(renew(), "test renewing")
    try:
        yield
    finally:
        await cancel(task)


async def test_a_token_is_renewed_while_messages_flow(pulsar_locked: LockedPulsar, tmp_path: Path) -> None:
    """The broker requests new credentials on the existing connections; no new connection is made."""
    file = tmp_path / "token"
    auth = CountingToken(Secret(file=file))
    tls = Tls(TlsSettings(authorities=pulsar_locked.authority.certificate))
    traffic = Traffic(client_of(pulsar_locked, tls, auth), pulsar_locked.take_topic())
    async with renewing(pulsar_locked, file), traffic.running():
        await until(lambda: auth.fresh >= RENEWALS)
        count = len(traffic.received)
        await until(lambda: len(traffic.received) > count + 100)
    assert (traffic.producer.registrations, traffic.consumer.registrations) == (1, 1)
    assert traffic.client._pool.connectivity.failures == 0
    assert traffic.received == sorted(traffic.sent)


async def test_a_token_that_is_renewed_too_late_is_logged(pulsar_locked: LockedPulsar, tmp_path: Path) -> None:
    file = tmp_path / "token"
    mirror = Mirror(pulsar_locked)
    cluster = pulsar_locked.config({"token": {"file": str(file)}})
    write_atomically(file, pulsar_locked.token(APP, SHORT_S))
    with GatewayProcess(mirror.config(cluster, cluster), tmp_path / "gateway") as gateway:
        async with mirror.sending():
            async with renewing(pulsar_locked, file):
                await asyncio.to_thread(gateway.wait_stored, 1)
            text = f"refuses a token from file {file} (role 'app'): it expired at"
            await until(lambda: text in gateway.log)
            ready = f"http://127.0.0.1:{gateway.port}/health/ready"
            await until(lambda: text in httpx.get(ready).text)
            write_atomically(file, pulsar_locked.token(APP))
            await until(lambda: httpx.get(ready).status_code == 200)
            stored = gateway.route()["stored"]
            await asyncio.to_thread(gateway.wait_stored, stored + 100)
        await asyncio.to_thread(gateway.wait_stored, PARTITIONS * mirror.sent)
        assert await asyncio.to_thread(gateway.terminate) == OK
        warnings = [line for line in gateway.log.splitlines() if text in line and "WARNING" in line]
        assert file.read_text() not in gateway.log
    assert 1 <= len(warnings) <= 2 * PARTITIONS, "once per cluster and outage"
    await mirror.judge()


@pytest.fixture
def server() -> Iterator[LockedPulsar]:
    """A broker for these tests alone, whose certificate can be replaced."""
    with LockedPulsar() as server:
        yield server


async def test_certificates_are_replaced_under_load(server: LockedPulsar, tmp_path: Path) -> None:
    """Our certificate is replaced by new files. The server's, from a new authority, is too: the server reads its files again."""
    own = server.certificate(APP, file="exchanged")
    authorities = tmp_path / "authorities.pem"
    old, new = server.authority, Authority(tmp_path / "new", "another authority")
    authorities.write_bytes(old.certificate.read_bytes())
    tls = Tls(TlsSettings(authorities=authorities, certificate=own.certificate, key=own.key))
    traffic = Traffic(client_of(server, tls, TlsAuth(own.certificate)), server.take_topic())
    of_server = f"certificate of 127.0.0.1:{server.service_url.rpartition(':')[2]}"
    async with traffic.running():
        before = dict(tls.expiries)
        exchange(server.certificate(APP, file="fresh", ends=SOON), own)
        await traffic.reconnected()
        assert tls.expiries["own certificate"] < before["own certificate"]

        authorities.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
        exchange(new.issue("server", ends=SOON), server.server_identity)
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while tls.expiries[of_server] == before[of_server]:
                await traffic.reconnected()
    assert set(traffic.received) == traffic.sent
