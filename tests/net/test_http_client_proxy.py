"""Calls of web interfaces use a proxy if the cluster names one, and nothing of the environment. Errors name who failed."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from mqbridge import PulsarClient, TubeMQClient
from mqbridge.errors import ConfigError, Failure, MqbridgeError, RequestTimeout, Unreachable
from mqbridge.net.http_client import HttpConnections
from mqbridge.net.proxy_url import check_proxy_url
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.adapter.config import PulsarCluster
from mqbridge.pulsar.client.admin.admin import Admin as PulsarAdmin
from mqbridge.tubemq.adapter.config import TubeMQCluster
from mqbridge.tubemq.client.admin.admin import Admin as TubeMQAdmin
from tests.kit.authority import Authority
from tests.net.fake_dns import silent
from tests.net.web import ForwardProxy, WebService, listening

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
SECRET = "canary-proxy"
TUBEMQ_BODY = b'{"result": true, "errCode": 0, "data": []}'

Call = Callable[[str, str | None], Awaitable[object]]


async def pulsar(url: str, proxy: str | None) -> object:
    admin = PulsarAdmin(url, 5.0, proxy=proxy)
    try:
        return await admin.clusters()
    finally:
        await admin.close()


async def tubemq(url: str, proxy: str | None) -> object:
    admin = TubeMQAdmin(url, timeout_s=5.0, proxy=proxy)
    try:
        return await admin.topics()
    finally:
        await admin.close()


async def pulsar_cluster(url: str, proxy: str | None) -> object:
    cluster = Pulsar("p", PulsarCluster(service_url="pulsar://127.0.0.1:1", admin_url=url, admin_proxy=proxy))
    try:
        assert cluster._admin is not None
        return await cluster._admin.clusters()
    finally:
        await cluster.close()


async def pulsar_client(url: str, proxy: str | None) -> object:
    async with PulsarClient("pulsar://127.0.0.1:1", admin_url=url, admin_proxy=proxy) as client:
        return await client.admin.clusters()


async def tubemq_client(url: str, proxy: str | None) -> object:
    async with TubeMQClient("tubemq://127.0.0.1:1", admin_url=url, admin_proxy=proxy) as client:
        return await client.admin().topics()


CALLS: list[Call] = [pulsar, pulsar_cluster, pulsar_client, tubemq, tubemq_client]


def body_of(call: Call) -> bytes:
    return TUBEMQ_BODY if call in {tubemq, tubemq_client} else b"[]"


@asynccontextmanager
async def nobody() -> AsyncIterator[int]:
    """Yield a port where nobody listens."""
    async with listening(WebService()) as port:
        pass
    yield port


# --- the environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("variable", PROXY_VARIABLES)
async def test_a_proxy_of_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch, call: Call, variable: str) -> None:
    service, proxy = WebService(body_of(call)), ForwardProxy()
    async with listening(service) as port, listening(proxy) as proxy_port:
        for name in (variable, variable.lower()):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy_port}")
        await call(f"http://127.0.0.1:{port}", None)
    assert len(service.requests) == 1
    assert proxy.targets == []


@pytest.mark.parametrize("call", CALLS)
async def test_a_configured_proxy_is_used_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    service, proxy = WebService(body_of(call)), ForwardProxy()
    async with listening(service) as port, listening(proxy) as proxy_port:
        await call(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{proxy_port}")
        assert len(service.requests) == 1
        assert len(proxy.targets) == 1
        assert proxy.targets[0].startswith(f"http://127.0.0.1:{port}/")


async def test_no_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    service = WebService()
    async with listening(service) as port:
        await pulsar(f"http://127.0.0.1:{port}", None)
    assert "authorization" not in service.headers


# --- through a proxy ----------------------------------------------------------------------------------------------------


async def test_by_https_the_server_behind_the_proxy_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("server", hosts=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    proxy = ForwardProxy()
    async with listening(WebService(), context=context) as port, listening(proxy) as proxy_port:
        url, through = httpx.URL(f"https://127.0.0.1:{port}/"), f"http://127.0.0.1:{proxy_port}"
        tls = Tls(TlsSettings(authorities=authority.certificate))
        connections = HttpConnections(httpx.Timeout(5.0), tls, proxy=through)
        assert (await connections.request("GET", url)).status_code == 200
        assert proxy.targets == [f"127.0.0.1:{port}"]
        assert list(tls.expiries) == [f"certificate of 127.0.0.1:{port}"]
        await connections.close()
        with pytest.raises(Unreachable, match=rf"^https://127.0.0.1:{port} \(through the proxy {through}\) .* by TLS: "):
            await pulsar(f"https://127.0.0.1:{port}", through)


async def test_a_proxy_gets_its_credentials_and_the_server_does_not(caplog: pytest.LogCaptureFixture) -> None:
    service, proxy = WebService(), ForwardProxy(credentials=f"me:{SECRET}")
    async with listening(service) as port, listening(proxy) as proxy_port:
        url = f"http://127.0.0.1:{port}"
        await pulsar(url, f"http://me:{SECRET}@127.0.0.1:{proxy_port}")
        assert "proxy-authorization" not in service.headers
        for wrong in ("", "me:other@"):
            with pytest.raises(Unreachable, match=rf"the proxy http://127.0.0.1:{proxy_port} for {url} refuses its credentials"):
                await pulsar(url, f"http://{wrong}127.0.0.1:{proxy_port}")
    assert len(service.requests) == 1
    assert SECRET not in caplog.text


# --- errors -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [pulsar, tubemq])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_is_away_is_named(call: Call, scheme: str) -> None:
    service = WebService(body_of(call))
    async with listening(service) as port, nobody() as gone:
        proxy, url = f"http://127.0.0.1:{gone}", f"{scheme}://127.0.0.1:{port}"
        with pytest.raises(Unreachable, match=rf"the proxy {proxy} for {url} cannot be reached") as caught:
            await call(url, f"http://me:{SECRET}@127.0.0.1:{gone}")
    assert caught.value.failure is Failure.RETRY
    assert SECRET not in str(caught.value)
    assert service.requests == []


@pytest.mark.parametrize("call", [pulsar, tubemq])
async def test_a_proxy_that_refuses_a_tunnel_is_named(call: Call) -> None:
    async with listening(ForwardProxy(status=403)) as proxy_port:
        with pytest.raises(Unreachable, match=rf"the proxy http://127.0.0.1:{proxy_port} for .* refused to connect: 403"):
            await call("https://127.0.0.1:1", f"http://127.0.0.1:{proxy_port}")


@pytest.mark.parametrize("call", [pulsar, tubemq])
async def test_an_error_status_may_be_that_of_the_proxy(call: Call) -> None:
    async with listening(ForwardProxy(status=503)) as proxy_port:
        with pytest.raises(MqbridgeError, match=rf"\(through the proxy http://127.0.0.1:{proxy_port}\).*503"):
            await call("http://127.0.0.1:1", f"http://127.0.0.1:{proxy_port}")


async def test_a_silent_proxy_is_named() -> None:
    async with nobody() as port:
        with silent("127.0.0.1", port):
            admin = PulsarAdmin("http://127.0.0.1:1", 0.5, proxy=f"http://127.0.0.1:{port}")
            with pytest.raises(RequestTimeout, match=rf"\(through the proxy http://127.0.0.1:{port}\) did not answer"):
                await admin.clusters()
            await admin.close()


async def test_a_server_without_a_proxy_is_named_alone() -> None:
    async with nobody() as port:
        with pytest.raises(Unreachable) as caught:
            await pulsar(f"http://127.0.0.1:{port}", None)
    assert str(caught.value).startswith(f"http://127.0.0.1:{port} cannot be reached: ")
    assert "proxy" not in str(caught.value)


# --- the option -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://proxy:3128", "https://me:secret@proxy:3128", "http://[::1]:3128/"])
def test_addresses_of_proxies(url: str) -> None:
    assert check_proxy_url(url) == url.rstrip("/")
    made = PulsarCluster(service_url="pulsar://a", admin_proxy=url)
    assert "secret" not in f"{made!r} {made.model_dump_json()}"


@pytest.mark.parametrize(
    "url",
    ["proxy:3128", "socks5://me:secret@proxy:1080", "http://", "http://me:secret@proxy/path", "http://me:secret@proxy:port"],
)
def test_a_wrong_address_of_a_proxy_is_refused_without_its_password(url: str) -> None:
    for make in (
        lambda: PulsarCluster(service_url="pulsar://a", admin_proxy=url),
        lambda: TubeMQCluster(masters=["a"], admin_proxy=url),
        lambda: PulsarClient("pulsar://a", admin_proxy=url),
        lambda: TubeMQClient("tubemq://a", admin_proxy=url),
    ):
        with pytest.raises((ValueError, ConfigError), match=r"a proxy is http://host:port") as caught:
            make()
        assert "secret" not in str(caught.value)


def test_an_empty_variable_means_no_proxy() -> None:
    assert PulsarCluster(service_url="pulsar://a", admin_proxy="").admin_proxy is None
    assert TubeMQCluster.from_url("tubemq://a?admin_proxy=").admin_proxy is None
    assert TubeMQCluster.from_url("tubemq://a?admin_proxy=http://p:3128").admin_proxy == "http://p:3128"
