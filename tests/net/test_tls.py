"""TLS toward servers: accepted and refused peers, error texts, changed files, and expiry of certificates.

The server is the one of the standard library, with certificates of the test's own authority. It echoes each byte.
"""

import asyncio
import logging
import os
import shutil
import socketserver
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mqbridge.config.tls import TlsOptions
from mqbridge.errors import ClusterError, ConnectionLost, Failure, Unreachable
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.secret import Secret
from mqbridge.net.tls.explain import is_permanent
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.adapter.registration import ADAPTER as ROCKETMQ
from mqbridge.tubemq.adapter.registration import ADAPTER as TUBEMQ
from tests.kit.authority import Authority, Identity
from tests.patience import PATIENCE_S

HOST = "127.0.0.1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def server_side(identity: Identity, clients_of: Authority | None = None, **settings: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of.certificate)
    for name, value in settings.items():
        setattr(context, name, value)
    return context


@asynccontextmanager
async def echo(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Run an echo server and yield its port. It runs in threads, because asyncio's server ends a handshake without an alert."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), context.wrap_socket(self.request, server_side=True) as connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

    with socketserver.ThreadingTCPServer((HOST, 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            await asyncio.to_thread(server.shutdown)


class Talk:
    """One connection to the echo server; each byte is a frame."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.new_data = asyncio.Event()

    def make(self) -> Endpoint:
        return Endpoint(lambda *_: 1, self._on_frames, self.lost.set_result)

    def _on_frames(self, frames: list[bytes]) -> None:
        self.received += b"".join(frames)
        self.new_data.set()

    async def exchange(self, endpoint: Endpoint, data: bytes) -> None:
        """Send data and wait until all of it has come back."""
        endpoint.send(data)
        while len(self.received) < len(data):
            self.new_data.clear()
            await self.new_data.wait()
        assert self.received == data


async def connected(port: int, tls: Tls | None, host: str = HOST, link: Link | None = None) -> None:
    """Connect, exchange data, close."""
    talk = Talk()
    endpoint = await dial(host, port, talk.make, tls=tls, link=link)
    await talk.exchange(endpoint, b"hello")
    await endpoint.close()


def on_both_loops(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())


def tls(**settings: Any) -> Tls:
    return TlsOptions.model_validate(settings).make("test")


def test_a_verified_server_works_on_both_event_loops(authority: Authority) -> None:
    context = server_side(authority.issue("server"))

    async def main() -> None:
        async with echo(context) as port:
            await connected(port, tls(authorities=authority.certificate))
            await connected(port, tls(authorities=authority.certificate, minimum_version="1.3"), "localhost")

    on_both_loops(main)


def test_large_transfers_work_on_both_event_loops(authority: Authority) -> None:
    """The data exceeds every buffer: writing pauses and resumes, and closing writes the queued bytes."""
    context, much = server_side(authority.issue("server")), os.urandom(1 << 20) * 24

    async def main() -> None:
        async with echo(context) as port:
            talk = Talk()
            endpoint = await dial(HOST, port, lambda: _whole(talk), tls=tls(authorities=authority.certificate))
            for at in range(0, len(much), 1 << 20):
                endpoint.send(much[at : at + (1 << 20)])
                await endpoint.wait_for_room()
            while len(talk.received) < len(much):
                talk.new_data.clear()
                await talk.new_data.wait()
            assert talk.received == much
            assert endpoint.delivered_bytes >= len(much)
            await endpoint.close()

    def _whole(talk: Talk) -> Endpoint:
        return Endpoint(lambda data, at: max(1, len(data) - at), talk._on_frames, talk.lost.set_result)

    on_both_loops(main)


Refusal = Callable[[Authority, Path], tuple[AbstractAsyncContextManager[int], Tls, str]]


def unknown_authority(authority: Authority, folder: Path) -> tuple[AbstractAsyncContextManager[int], Tls, str]:
    theirs = Authority(folder / "theirs")
    return (
        echo(server_side(theirs.issue("server"))),
        tls(authorities=authority.certificate),
        (f"signed by no authority that tls.authorities holds ({authority.certificate})"),
    )


def of_another_name(authority: Authority, folder: Path) -> tuple[AbstractAsyncContextManager[int], Tls, str]:
    identity = authority.issue("server", hosts=["broker.internal"])
    return (
        echo(server_side(identity)),
        tls(authorities=authority.certificate),
        ("its certificate is not for 127.0.0.1: give the name that it is for as tls.server_name"),
    )


def expired(authority: Authority, folder: Path) -> tuple[AbstractAsyncContextManager[int], Tls, str]:
    identity = authority.issue("server", begins=-timedelta(days=2), ends=-timedelta(days=1))
    return echo(server_side(identity)), tls(authorities=authority.certificate), "has expired: it must be renewed at the server"


def not_yet(authority: Authority, folder: Path) -> tuple[AbstractAsyncContextManager[int], Tls, str]:
    identity = authority.issue("server", begins=timedelta(days=1), ends=timedelta(days=2))
    return echo(server_side(identity)), tls(authorities=authority.certificate), "is not valid yet: check the clocks"


def too_old(authority: Authority, folder: Path) -> tuple[AbstractAsyncContextManager[int], Tls, str]:
    context = server_side(authority.issue("server"), maximum_version=ssl.TLSVersion.TLSv1_2)
    return echo(context), tls(authorities=authority.certificate, minimum_version="1.3"), "see tls.minimum_version"


@pytest.mark.parametrize("case", [unknown_authority, of_another_name, expired, not_yet, too_old])
async def test_an_untrusted_server_is_refused_and_the_option_is_named(
    case: Refusal, authority: Authority, tmp_path: Path
) -> None:
    server, client_tls, why = case(authority, tmp_path)
    async with server as port:
        with pytest.raises(Unreachable) as raised:
            await connected(port, client_tls)
    assert f"{HOST}:{port} cannot be reached by TLS: " in str(raised.value)
    assert why in str(raised.value)
    assert raised.value.failure is Failure.FATAL


@pytest.mark.parametrize(
    ("answer", "why", "failure"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak TLS", Failure.FATAL),
        (b"\0\0\0\x12what?", "does not speak TLS", Failure.FATAL),
        (b"", "ended the connection", Failure.RETRY),  # as a balancer does that has no server yet
    ],
)
async def test_a_port_without_tls_is_reported(answer: bytes, why: str, failure: Failure) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, HOST, 0)
    async with server:
        with pytest.raises(Unreachable, match=why) as raised:
            await connected(server.sockets[0].getsockname()[1], tls())
    assert raised.value.failure is failure


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ssl.SSLCertVerificationError("unknown authority"), True),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA]"), True),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), False),
        (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
    ],
)
def test_only_rejections_are_permanent(error: Exception, final: bool) -> None:
    assert is_permanent(error) is final


async def test_a_refusal_after_an_accepted_connection_is_transient(authority: Authority, tmp_path: Path) -> None:
    server, client_tls, _ = unknown_authority(authority, tmp_path)
    link = Link(Connectivity("test"), HOST, 1)
    link.record_credentials_accepted()
    async with server as port:
        with pytest.raises(Unreachable) as raised:
            await connected(port, client_tls, link=link)
    assert raised.value.failure is Failure.RETRY


async def test_the_name_and_its_verification_can_be_set(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with echo(server_side(authority.issue("server", hosts=["broker.internal"]))) as port:
        await connected(port, tls(authorities=authority.certificate, server_name="broker.internal"))
        assert caplog.text == ""
        await connected(port, tls(authorities=authority.certificate, verify="authority"))
        assert "any server with a certificate from these authorities can pose as this cluster" in caplog.text
        caplog.clear()
        await connected(port, tls(verify="none"))
    assert "ANYONE on the network path can read and change data and credentials" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


# --- our own certificate ------------------------------------------------------------------------------------------------


async def refused(port: int, client_tls: Tls) -> str:
    """Return why the server ends the connection: with TLS 1.3 the alert comes after the handshake."""
    talk = Talk()
    try:
        endpoint = await dial(HOST, port, talk.make, tls=client_tls)
    except Unreachable as error:
        return str(error)
    error = await talk.lost
    assert isinstance(error, ConnectionLost)
    await endpoint.close()
    return str(error)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_demands_a_client_certificate(version: ssl.TLSVersion, authority: Authority, tmp_path: Path) -> None:
    context = server_side(authority.issue("server"), clients_of=authority, maximum_version=version)
    mine, old = authority.issue("mine"), authority.issue("old", begins=-timedelta(days=2), ends=-timedelta(days=1))
    other = Authority(tmp_path / "theirs", "somebody else").issue("stranger")
    trusted = {"authorities": authority.certificate}
    async with echo(context) as port:
        await connected(port, tls(**trusted, certificate=mine.certificate, key=mine.key))
        assert "tls.certificate" in await refused(port, tls(**trusted))
        assert "renew tls.certificate" in await refused(port, tls(**trusted, certificate=old.certificate, key=old.key))
        assert "tls.certificate" in await refused(port, tls(**trusted, certificate=other.certificate, key=other.key))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_refused_certificate_is_fatal_unless_it_was_accepted_before(
    version: ssl.TLSVersion, authority: Authority
) -> None:
    """With both versions: in TLS 1.3 the alert comes after the handshake."""
    context = server_side(authority.issue("server"), clients_of=authority, maximum_version=version)
    link = Link(Connectivity("test"), HOST, 1)

    async def failure(port: int) -> Failure:
        talk = Talk()
        try:
            await dial(HOST, port, talk.make, tls=tls(authorities=authority.certificate), link=link)
            error = await talk.lost
        except Unreachable as refused:
            error = refused
        assert isinstance(error, ClusterError)
        return error.failure

    async with echo(context) as port:
        assert await failure(port) is Failure.FATAL
        link.record_credentials_accepted()
        assert await failure(port) is Failure.RETRY


async def test_a_certificate_that_only_openssl_can_read_does_no_harm(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: bytes) -> None:
        raise ValueError("error parsing asn1 value")

    monkeypatch.setattr("cryptography.x509.load_der_x509_certificate", unreadable)
    client_tls = tls(authorities=authority.certificate)
    async with echo(server_side(authority.issue("server"))) as port:
        await connected(port, client_tls)
    assert not client_tls.expiries


async def test_a_key_with_a_password_and_one_in_the_same_file(authority: Authority, tmp_path: Path) -> None:
    locked = authority.issue("locked", password="canary-77")
    both = tmp_path / "both.pem"
    plain = authority.issue("plain")
    both.write_bytes(plain.certificate.read_bytes() + plain.key.read_bytes())
    trusted = {"authorities": authority.certificate}
    async with echo(server_side(authority.issue("server"), clients_of=authority)) as port:
        await connected(port, tls(**trusted, certificate=locked.certificate, key=locked.key, key_password="canary-77"))
        await connected(port, tls(**trusted, certificate=both))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"authorities": "none.pem"}, "tls.authorities none.pem cannot be used: No such file or directory"),
        ({"authorities": "text"}, "tls.authorities text cannot be used: its content is invalid"),
        ({"certificate": "none.pem"}, "tls.certificate none.pem cannot be used: No such file or directory"),
        ({"certificate": "text"}, "tls.certificate text cannot be used: its content is invalid"),
        ({"certificate": "text", "key": "mine.key"}, "tls.certificate text cannot be used: its content is invalid"),
        ({"certificate": "mine.pem", "key": "none.key"}, "tls.key none.key cannot be used: No such file or directory"),
        ({"certificate": "mine.pem", "key": "text"}, "tls.key text cannot be used: its content is invalid"),
        ({"certificate": "mine.pem", "key": "other.key"}, "tls.key other.key is not the key of tls.certificate mine.pem"),
        ({"certificate": "locked.pem", "key": "locked.key"}, "tls.key locked.key is encrypted: give tls.key_password"),
        (
            {"certificate": "locked.pem", "key": "locked.key", "key_password": "canary-wrong"},
            "tls.key locked.key is encrypted: tls.key_password does not open it",
        ),
    ],
)
async def test_unusable_tls_files_are_named(
    settings: dict[str, str], why: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(authority.folder)
    for name, password in (("mine", None), ("other", None), ("locked", "canary-77")):
        authority.issue(name, password=password)
    (authority.folder / "text").write_text("nothing of the kind")
    with pytest.raises(ClusterError) as raised:
        await tls(**settings).context()
    assert why in str(raised.value)
    assert "canary" not in str(raised.value)
    assert raised.value.failure is Failure.FATAL


def test_a_key_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"give tls\.certificate"):
        TlsOptions.model_validate({"key": "a.key"})


# --- files that change --------------------------------------------------------------------------------------------------


async def test_files_that_change_are_used_by_the_next_connection(authority: Authority, tmp_path: Path) -> None:
    """Our certificate and the authorities are replaced, because another authority signs the server's new certificate."""
    old, new = authority, Authority(tmp_path / "new", "the new one")
    trusted = tmp_path / "trusted.pem"
    shutil.copy(old.certificate, trusted)
    mine = old.issue("mine")
    client_tls = tls(authorities=trusted, certificate=mine.certificate, key=mine.key)
    async with echo(server_side(old.issue("server"), clients_of=old)) as port:
        await connected(port, client_tls)
    async with echo(server_side(new.issue("server"), clients_of=new)) as port:
        with pytest.raises(Unreachable):
            await connected(port, client_tls)
        shutil.copy(new.certificate, trusted)
        renewed = new.issue("mine")
        shutil.copy(renewed.certificate, mine.certificate)
        shutil.copy(renewed.key, mine.key)
        await connected(port, client_tls)


async def test_a_certificate_without_its_new_key_is_not_used(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    mine = authority.issue("mine")
    client_tls = tls(authorities=authority.certificate, certificate=mine.certificate, key=mine.key)
    async with echo(server_side(authority.issue("server"), clients_of=authority)) as port:
        await connected(port, client_tls)
        before = await client_tls.context()
        key = mine.key.read_bytes()
        authority.issue("mine")
        new_key = mine.key.read_bytes()
        mine.key.write_bytes(key)
        assert await client_tls.context() is before
        assert "the changed TLS files cannot be used, new connections use the earlier ones: tls.key" in caplog.text
        await connected(port, client_tls)
        mine.key.write_bytes(new_key)
        assert await client_tls.context() is not before
        assert "new connections use them" in caplog.text
        await connected(port, client_tls)


async def test_a_context_is_kept_while_nothing_changes(authority: Authority) -> None:
    client_tls = tls(authorities=authority.certificate)
    assert await client_tls.context() is await client_tls.context()


# --- expiry -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", ["full", "none"])
async def test_expiry_times_of_certificates_are_recorded(verify: str, authority: Authority) -> None:
    server, mine = authority.issue("server", ends=timedelta(days=3)), authority.issue("mine", ends=timedelta(days=5))
    client_tls = tls(authorities=authority.certificate, certificate=mine.certificate, key=mine.key, verify=verify)
    async with echo(server_side(server)) as port:
        await connected(port, client_tls)
    days = {name: round((end - time.time()) / 86400) for name, end in client_tls.expiries.items()}
    assert days == {"own certificate": 5, f"certificate of {HOST}:{port}": 3}


def test_libraries_need_no_configuration(authority: Authority) -> None:
    settings = TlsSettings(authorities=authority.certificate, key_password=Secret("canary-77"))
    assert "canary" not in repr(Tls(settings).settings)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_closing_waits_for_written_bytes_and_not_for_a_response(
    authority: Authority, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Java's servers keep reading after the end of a TLS session, and never send their own close."""
    got, over = bytearray(), threading.Event()
    context, sent = server_side(authority.issue("server")), os.urandom(3 << 20)

    class Silent(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), context.wrap_socket(self.request, server_side=True, suppress_ragged_eofs=False) as connection:
                while data := connection.recv(1 << 16):
                    got.extend(data)
                over.wait()

    async def talk(port: int) -> None:
        endpoint = await dial(HOST, port, Talk().make, tls=Tls(TlsSettings(authorities=authority.certificate)))
        endpoint.send(sent)
        async with asyncio.timeout(PATIENCE_S):
            await endpoint.close(timeout=10 * PATIENCE_S)
            while len(got) < len(sent):
                await asyncio.sleep(0.001)

    with socketserver.ThreadingTCPServer((HOST, 0), Silent) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(talk(server.server_address[1]))
        finally:
            over.set()
            server.shutdown()
    assert got == sent


@pytest.mark.parametrize("system", ["rocketmq", "tubemq"])
async def test_a_certificate_refused_after_the_handshake_fails_the_start(system: str, authority: Authority) -> None:
    """With TLS 1.3, the server's alert comes after the handshake. If its reset overtakes the alert, try again."""
    adapter, servers = (ROCKETMQ, "name_servers") if system == "rocketmq" else (TUBEMQ, "masters")
    async with echo(server_side(authority.issue("server"), clients_of=authority, minimum_version=ssl.TLSVersion.TLSv1_3)) as port:
        settings = {servers: f"localhost:{port}", "tls": {"authorities": authority.certificate}}
        problem = "reset by peer"
        while "reset by peer" in problem:
            with pytest.raises(ClusterError) as caught:
                await adapter.make_cluster("c", adapter.cluster_model(**settings)).connect()
            problem = str(caught.value)
    assert problem.endswith("demands a certificate of ours: give tls.certificate and tls.key")
    assert caught.value.failure is Failure.FATAL


async def test_a_refusal_of_a_once_accepted_certificate_is_retried(authority: Authority) -> None:
    async with echo(server_side(authority.issue("server"), clients_of=authority, minimum_version=ssl.TLSVersion.TLSv1_3)) as port:
        link = Link(Connectivity("c"), HOST, port)
        link.record_credentials_accepted()
        talk = Talk()
        await dial(HOST, port, talk.make, tls=tls(authorities=authority.certificate), link=link)
        error = await talk.lost
    assert isinstance(error, ConnectionLost)
    assert error.failure is Failure.RETRY


async def test_sends_after_a_fatal_refusal_fail_as_fatal(authority: Authority) -> None:
    async with echo(server_side(authority.issue("server"), clients_of=authority, minimum_version=ssl.TLSVersion.TLSv1_3)) as port:
        talk = Talk()
        endpoint = await dial(HOST, port, talk.make, tls=tls(authorities=authority.certificate))
        await talk.lost
        with pytest.raises(ConnectionLost, match=r"give tls\.certificate") as caught:
            endpoint.send(b"x")
    assert caught.value.failure is Failure.FATAL
