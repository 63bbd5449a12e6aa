"""The Master's web interface behind a TLS proxy: the cluster's TLS options apply, and errors never show the token."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from mqbridge.errors import ClusterError, ServerRefused, Unreachable
from mqbridge.net.secret import Secret
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.client.admin.admin import Admin
from tests.kit.authority import Authority

TOKEN = "canary-token"
TOPICS = b'{"result":true,"errCode":0,"errMsg":"OK","data":[{"topicName":"orders"}]}'
REFUSED = b'{"result":false,"errCode":400,"errMsg":"illegal access, unauthorized request!"}'


@asynccontextmanager
async def tls_server(authority: Authority, forms: list[str]) -> AsyncIterator[str]:
    """Run a TLS server that records the forms of calls and refuses those with a token; yield its URL."""
    identity = authority.issue("proxy")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate, identity.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in header.lower().splitlines() if line.startswith(b"content-length"))
        forms.append((await reader.readexactly(length)).decode())
        body = REFUSED if "confModAuthToken" in forms[-1] else TOPICS
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def admin_at(url: str, authorities: Path) -> AsyncIterator[Admin]:
    admin = Admin(url, Secret(TOKEN), tls=Tls(TlsSettings(authorities=authorities)))
    try:
        yield admin
    finally:
        await admin.close()


async def test_the_web_interface_is_called_by_tls(authority: Authority) -> None:
    forms: list[str] = []
    async with tls_server(authority, forms) as url, admin_at(url, authority.certificate) as admin:
        assert await admin.topics() == ["orders"]
    assert parse_qs(forms[0]) == {"method": ["admin_query_cluster_topic_view"]}


async def test_a_proxy_with_an_unknown_authority_is_unreachable(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "somebody else")
    async with tls_server(authority, []) as url, admin_at(url, stranger.certificate) as admin:
        with pytest.raises(Unreachable, match=r"signed by no authority that tls\.authorities holds"):
            await admin.topics()


async def test_the_token_is_not_shown_in_logs_and_errors(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    forms: list[str] = []
    async with tls_server(authority, forms) as url:
        async with admin_at(url, authority.certificate) as admin:
            with pytest.raises(ServerRefused) as refused:
                await admin.check_change()
        async with admin_at("http://127.0.0.1:1", authority.certificate) as nowhere:
            with pytest.raises(ClusterError) as unreachable:
                await nowhere.check_change()
    assert parse_qs(forms[0])["confModAuthToken"] == [TOKEN]
    assert TOKEN not in f"{refused.value}{unreachable.value}{caplog.text}{vars(admin)}"
