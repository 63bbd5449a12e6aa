"""Web interfaces behind NAT: calls go to where an advertised address can be reached, and keep its name."""

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from mqbridge.errors import Unreachable
from mqbridge.net.addresses import AddressMap
from mqbridge.net.http_client import HttpConnections
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.admin.admin import Admin as PulsarAdmin
from mqbridge.tubemq.client.admin.admin import Admin as TubeMQAdmin
from tests.kit.authority import Authority
from tests.net import fake_dns
from tests.net.fake_dns import dropping
from tests.net.web import ForwardProxy, WebService, listening
from tests.patience import PATIENCE_S

ONLINE = (
    b'{"result": true, "errCode": 0, "data": [{"brokerId": 1, "manageStatus": "online", "brokerIp": "broker-1.internal",'
    b' "brokerWebPort": 8081}], "dataSet": []}'
)


async def test_a_redirect_to_an_advertised_address_is_followed_to_the_reachable_one() -> None:
    first, owner = WebService(), WebService(b'["standalone"]')
    async with listening(first) as first_port, listening(owner) as owner_port:
        first.location = "http://broker-1.internal:8080/admin/v2/clusters"
        addresses = AddressMap({"broker-1.internal:8080": f"127.0.0.1:{owner_port}"})
        admin = PulsarAdmin(f"http://127.0.0.1:{first_port}", 5.0, addresses=addresses)
        assert await admin.clusters() == ["standalone"]
        assert owner.headers["host"] == "broker-1.internal:8080"
        assert len(first.requests) == 1
        owner.location = "http://broker-2.internal:8080/x"
        first.location = "http://broker-1.internal:8080/admin/v2/clusters"
        text = r"^http://broker-2\.internal:8080 cannot be reached: .*has no entry for it, but one for 'broker-1\.internal:8080'"
        with pytest.raises(Unreachable, match=text):
            await admin.clusters()
        await admin.close()


async def test_the_web_addresses_of_brokers_are_mapped() -> None:
    master, broker = WebService(ONLINE), WebService(ONLINE)
    async with listening(master) as master_port, listening(broker) as broker_port:
        addresses = AddressMap({"broker-1.internal:8081": f"127.0.0.1:{broker_port}"})
        admin = TubeMQAdmin(f"http://127.0.0.1:{master_port}", timeout_s=5.0, addresses=addresses)
        assert await admin.groups("t") == []
        assert broker.headers["host"] == "broker-1.internal:8081"
        await admin.close()


@pytest.mark.parametrize("addresses", [AddressMap(), AddressMap({"broker.internal": "127.0.0.1"})], ids=["direct", "mapped"])
async def test_calls_to_mapped_addresses_wait_for_each_other_no_more_than_others(addresses: AddressMap) -> None:
    """A web interface may be slow, and a topic have many partitions to ask about."""
    count, arrived, all_arrived = 30, 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        await reader.readuntil(b"\r\n\r\n")
        arrived += 1
        if arrived == count:
            all_arrived.set()
        await all_arrived.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = httpx.URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    connections = HttpConnections(httpx.Timeout(PATIENCE_S), addresses=addresses)
    async with server:
        responses = await asyncio.gather(*(connections.request("GET", url) for _ in range(count)))
        assert {response.status_code for response in responses} == {204}
        await connections.close()


async def test_by_https_the_certificate_is_that_of_the_advertised_name(tmp_path: Path) -> None:
    """Two advertised names at one reachable address have connections of their own: a gateway may route by the name in TLS."""
    authority = Authority(tmp_path)
    identity = authority.issue("server", hosts=["one.internal", "two.internal"])
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    context.sni_callback = lambda _connection, name, _context: names.append(name)
    async with listening(WebService(), context=context) as port:
        reachable = f"127.0.0.1:{port}"
        addresses = AddressMap({"one.internal:8443": reachable, "two.internal:8443": reachable, "three.internal:8443": reachable})
        tls = Tls(TlsSettings(authorities=authority.certificate))
        connections = HttpConnections(httpx.Timeout(5.0), tls, addresses=addresses)
        for name in ("one", "two"):
            response = await connections.request("GET", httpx.URL(f"https://{name}.internal:8443/"))
            assert response.url.host == f"{name}.internal"
        assert names == ["one.internal", "two.internal"]
        assert list(tls.expiries) == ["certificate of one.internal:8443", "certificate of two.internal:8443"]
        url = httpx.URL("https://three.internal:8443/")
        with pytest.raises(httpx.ConnectError) as caught:
            await connections.request("GET", url)
        text = connections.explain_connecting(caught.value, url)
        assert text.startswith(f"https://three.internal:8443 (at {reachable}) cannot be reached by TLS: ")
        await connections.close()


async def test_a_proxy_gets_the_advertised_address() -> None:
    proxy = ForwardProxy(status=403)
    async with listening(proxy) as port:
        addresses = AddressMap({"broker-1.internal:8443": "127.0.0.1:1"})
        connections = HttpConnections(httpx.Timeout(5.0), proxy=f"http://127.0.0.1:{port}", addresses=addresses)
        with pytest.raises(httpx.ProxyError):
            await connections.request("GET", httpx.URL("https://broker-1.internal:8443/"))
        assert proxy.targets == ["broker-1.internal:8443"]
        await connections.close()


@pytest.mark.parametrize("addresses", [AddressMap(), AddressMap({"advertised.test": "two.test"})], ids=["direct", "mapped"])
@pytest.mark.parametrize("first", ["127.0.0.2", "::1"])
async def test_the_second_address_of_a_name_is_used_if_the_first_drops_packets(
    monkeypatch: pytest.MonkeyPatch, addresses: AddressMap, first: str
) -> None:
    """With several configured addresses each has a share of the time; the addresses of one name are tried within its share."""
    fake_dns.install(monkeypatch, {"two.test": [first, "127.0.0.1"]})
    service = WebService(b'["standalone"]')
    async with listening(service) as port:
        with dropping(first, port):
            host = "advertised.test" if addresses else "two.test"
            admin = PulsarAdmin(f"http://{host}:{port},other.invalid:1,another.invalid:1", 6.0, addresses=addresses)
            assert await admin.clusters() == ["standalone"]
            await admin.close()
