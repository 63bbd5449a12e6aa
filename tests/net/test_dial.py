"""A host name with several addresses: one that works is found, whatever the others do, within the deadline."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mqbridge.errors import ConnectionLost, Failure, PeerSilent, Unreachable
from mqbridge.net.addresses import AddressMap
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.race import MAX_ADDRESSES, resolve
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from tests.kit.authority import Authority, Identity
from tests.net import fake_dns
from tests.net.fake_dns import Server, dropping, silent
from tests.patience import PATIENCE_S

NAME = "two.test"
FIRST, SECOND = "127.0.0.2", "127.0.0.1"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(loop: Callable[[], asyncio.AbstractEventLoop], coroutine: Coroutine[Any, Any, None]) -> None:
    async def within_patience() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await coroutine

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(within_patience())


def named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Give the name these addresses, in this order, for both event loops."""
    fake_dns.install(monkeypatch, {NAME: addresses})
    original = uvloop.Loop.getaddrinfo

    async def getaddrinfo(self: uvloop.Loop, host: Any, port: Any, **options: Any) -> Any:
        if host == NAME:  # libuv does not use Python's resolver
            return socket.getaddrinfo(host, port, **options)
        return await original(self, host, port, **options)

    monkeypatch.setattr(uvloop.Loop, "getaddrinfo", getaddrinfo)


class Talk:
    """A connection whose frames are single bytes."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.endpoint = Endpoint(lambda *_: 1, self._on_frames, self.lost.set_result)

    def _on_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.received.put_nowait(frame)

    async def echo(self) -> None:
        """Check that the connection works in both directions, and close it."""
        self.endpoint.send(b"x")
        assert await self.received.get() == b"x"
        await self.endpoint.close()


@asynccontextmanager
async def serving(ip: str = SECOND, port: int = 0, *, identity: Identity | None = None) -> AsyncIterator[tuple[Server, int]]:
    server, context = Server(), None
    if identity is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.certificate, identity.key)
    listening = await asyncio.start_server(server.serve, ip, port, ssl=context)
    try:
        yield server, listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for writer in [*server.open]:
            writer.transport.abort()


async def dial_name(port: int, **options: Any) -> Talk:
    talk = Talk()
    assert await dial(NAME, port, lambda: talk.endpoint, **options) is talk.endpoint
    return talk


# --- an address that works is found ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("first", [FIRST, "::1"])
def test_the_second_address_is_used_if_the_first_drops_packets(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop], first: str
) -> None:
    named(monkeypatch, first, SECOND)

    async def check() -> None:
        async with serving() as (_, port):
            with dropping(first, port):
                await (await dial_name(port)).echo()

    run(loop, check())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("first", [FIRST, "::1"])
def test_the_second_address_is_used_if_the_first_refuses(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop], first: str
) -> None:
    named(monkeypatch, first, SECOND)

    async def check() -> None:
        async with serving() as (_, port):
            await (await dial_name(port)).echo()

    run(loop, check())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_first_address_is_used_if_it_answers(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    named(monkeypatch, FIRST, SECOND)

    async def check() -> None:
        async with serving() as (second, port), serving(FIRST, port) as (first, _):
            await (await dial_name(port)).echo()
            assert (first.accepted, second.accepted) == (1, 0)

    run(loop, check())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("broken", [dropping, silent])
def test_with_tls_an_address_without_a_handshake_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], broken: Any
) -> None:
    """The name in the certificate is the host's, not the address that answered."""
    named(monkeypatch, FIRST, SECOND)
    authority = Authority(tmp_path)
    identity = authority.issue("server", hosts=[NAME])

    async def check() -> None:
        async with serving(identity=identity) as (_, port):
            with broken(FIRST, port):
                await (await dial_name(port, tls=Tls(TlsSettings(authorities=authority.certificate)))).echo()

    run(loop, check())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_certificate_of_another_name_is_refused_at_every_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    named(monkeypatch, FIRST, SECOND)
    authority = Authority(tmp_path)
    identity = authority.issue("server", hosts=["other.test"])

    async def check() -> None:
        async with serving(identity=identity) as (_, port), serving(FIRST, port, identity=identity):
            with pytest.raises(Unreachable, match=r"is not for two\.test") as caught:
                await dial_name(port, tls=Tls(TlsSettings(authorities=authority.certificate)))
            assert caught.value.failure is Failure.FATAL

    run(loop, check())


async def test_a_wrong_certificate_at_one_address_is_no_reason_to_give_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other address may come back, so the failure is not FATAL."""
    named(monkeypatch, FIRST, SECOND)
    authority = Authority(tmp_path)
    identity = authority.issue("server", hosts=["other.test"])
    async with serving(identity=identity) as (_, port):
        with pytest.raises(Unreachable, match=rf"{FIRST}: .*Connect call failed.*{SECOND}: .*is not for two\.test") as caught:
            await dial_name(port, tls=Tls(TlsSettings(authorities=authority.certificate)))
    assert caught.value.failure is Failure.RETRY


async def test_the_last_of_many_addresses_is_tried_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [f"127.0.1.{number}" for number in range(1, MAX_ADDRESSES)]
    named(monkeypatch, *broken, SECOND)
    async with serving() as (_, port):
        with ExitStack() as stack:
            for ip in broken:
                stack.enter_context(dropping(ip, port))
            await (await dial_name(port, timeout=2.0)).echo()


async def test_no_connection_is_left_at_the_addresses_that_were_too_slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named(monkeypatch, FIRST, SECOND)
    authority = Authority(tmp_path)
    identity = authority.issue("server", hosts=[NAME])
    async with serving(identity=identity) as (_, port):
        with silent(FIRST, port) as listener:
            await (await dial_name(port, tls=Tls(TlsSettings(authorities=authority.certificate)))).echo()
            slow, _ = listener.accept()
            with slow:
                slow.settimeout(PATIENCE_S)
                while slow.recv(1 << 16):  # ends: we have closed the connection
                    pass


@pytest.mark.parametrize("loop", LOOPS)
def test_no_connection_is_left_if_the_caller_is_cancelled_as_an_attempt_succeeds(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """In whichever iteration of the event loop after the connection was made."""

    async def is_cancelled_after(iterations: int, server: Server, port: int) -> bool:
        class Cancelling(Endpoint):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                count_down(iterations)

        def count_down(left: int) -> None:
            if left:
                asyncio.get_running_loop().call_soon(count_down, left - 1)
            else:
                task.cancel()

        endpoint = Cancelling(lambda *_: 1, lambda _: None, lambda _: None)
        task = asyncio.ensure_future(dial(SECOND, port, lambda: endpoint))
        await asyncio.wait([task])
        if not task.cancelled():
            await endpoint.close()
        while server.open:
            await asyncio.sleep(0.005)
        return task.cancelled()

    async def check() -> None:
        async with serving() as (server, port):
            iterations = 0
            while await is_cancelled_after(iterations, server, port):
                iterations += 1
            assert iterations > 1

    run(loop, check())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("greeting", [b"", b"hello"])
def test_a_server_that_speaks_and_ends_the_connection_at_once_is_heard(
    loop: Callable[[], asyncio.AbstractEventLoop], greeting: bytes
) -> None:
    """What happens before the connection is handed to its endpoint reaches the endpoint, too."""

    async def check() -> None:
        def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greeting)
            writer.close()

        listening = await asyncio.start_server(greet, SECOND, 0)
        for _ in range(20):
            talk = Talk()
            endpoint = await dial(SECOND, listening.sockets[0].getsockname()[1], lambda: talk.endpoint)  # noqa: B023
            assert isinstance(await talk.lost, ConnectionLost)
            assert [talk.received.get_nowait() for _ in greeting] == [bytes([byte]) for byte in greeting]
            assert not endpoint.alive
        listening.close()

    run(loop, check())


# --- no address works --------------------------------------------------------------------------------------------------


async def test_the_error_names_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, FIRST, SECOND)
    async with serving() as (_, port):
        pass
    with pytest.raises(Unreachable) as caught:
        await dial_name(port)
    text = str(caught.value)
    assert text.startswith(f"{NAME}:{port} cannot be reached: {FIRST}: ")
    assert f"; {SECOND}: " in text
    with dropping(SECOND, port), pytest.raises(Unreachable) as caught:
        await dial_name(port, timeout=0.5)
    assert str(caught.value).startswith(f"{NAME}:{port} did not accept a connection within 0.5 s ({FIRST}: ")
    assert f"{SECOND}: no answer)" in str(caught.value)


async def test_a_name_without_address_is_an_error() -> None:
    with pytest.raises(Unreachable, match=r"cannot be reached: .*[Nn]ame"):
        await dial("nobody.invalid", 1, lambda: Talk().endpoint)


# --- advertised and reachable addresses --------------------------------------------------------------------------------


async def test_an_advertised_address_is_reached_where_the_map_says(tmp_path: Path) -> None:
    """The certificate is verified for the advertised name, and the cluster's state has the advertised address."""
    authority = Authority(tmp_path)
    identity = authority.issue("server", hosts=["broker-1.internal"])
    tls = Tls(TlsSettings(authorities=authority.certificate))
    async with serving(identity=identity) as (server, port):
        addresses = AddressMap({"broker-1.internal:6650": f"{SECOND}:{port}"})
        talk, connectivity = Talk(), Connectivity("c", [("broker-1.internal", 6650)])
        link = Link(connectivity, "broker-1.internal", 6650)
        await dial("Broker-1.internal", 6650, lambda: talk.endpoint, tls=tls, link=link, addresses=addresses)
        await talk.echo()
        assert server.accepted == 1
        assert list(tls.expiries) == ["certificate of Broker-1.internal:6650"]
        assert connectivity.unreachable_s is None
        with pytest.raises(Unreachable, match=r"^other:6650 \(at .*\) cannot be reached by TLS: .*is not for other"):
            await dial("other", 6650, lambda: Talk().endpoint, tls=tls, addresses=AddressMap({"other:6650": f"{SECOND}:{port}"}))


async def test_the_error_names_both_addresses_or_the_missing_entry() -> None:
    async with serving() as (_, port):
        pass
    addresses = AddressMap({"broker-1:6650": f"{SECOND}:{port}"})
    with pytest.raises(Unreachable, match=rf"^broker-1:6650 \(at {SECOND}:{port}\) cannot be reached: "):
        await dial("broker-1", 6650, lambda: Talk().endpoint, addresses=addresses)
    with pytest.raises(Unreachable, match=r"; `addresses` has no entry for it, but one for 'broker-1:6650'$"):
        await dial("broker-1", 6651, lambda: Talk().endpoint, addresses=addresses)
    with pytest.raises(Unreachable, match=r"; `addresses` has no entry for it$"):
        await dial("nobody.invalid", 9, lambda: Talk().endpoint, addresses=addresses)


# --- addresses -----------------------------------------------------------------------------------------------------------


async def test_the_families_alternate_and_the_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_dns.install(
        monkeypatch,
        {
            "mixed.test": ["::1", "::2", "::3", "127.0.0.1", "127.0.0.2", "::1"],
            "many.test": [f"127.0.1.{number}" for number in range(200)],
        },
    )
    assert await resolve("mixed.test", 1) == ["::1", "127.0.0.1", "::2", "127.0.0.2", "::3"]
    assert len(await resolve("many.test", 1)) == MAX_ADDRESSES
    assert await resolve("fe80::1%lo", 1) == ["fe80::1%lo"]


# --- an address that accepts connections and does not serve ------------------------------------------------------------


@pytest.mark.parametrize("ending", ["silent", "closed"])
async def test_an_address_that_served_nothing_is_tried_last(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    named(monkeypatch, FIRST, SECOND)
    async with serving() as (second, port), serving(FIRST, port) as (first, _):
        connectivity = Connectivity("c", [(NAME, port)])
        talk = await dial_name(port, link=Link(connectivity, NAME, port))
        error = PeerSilent("nothing arrived") if ending == "silent" else ConnectionLost("it ended")
        talk.endpoint.abort(error)
        await talk.lost
        for _ in range(2):
            await (await dial_name(port, link=Link(connectivity, NAME, port))).echo()
        assert (first.accepted, second.accepted) == (1, 2)
        # When the other one fails too, the first gets another chance.
        talk = await dial_name(port, link=Link(connectivity, NAME, port))
        talk.endpoint.abort(error)
        await talk.lost
        await (await dial_name(port, link=Link(connectivity, NAME, port))).echo()
        assert first.accepted == 2
        connectivity.close()
