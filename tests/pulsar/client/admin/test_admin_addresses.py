"""Several addresses of the admin interface: which one is tried next if one is unreachable; scripted, without sockets."""

import asyncio
import re

import httpx
import pytest

from mqbridge.errors import ClusterError, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.http_client import HttpConnections
from mqbridge.pulsar.adapter.config import PulsarCluster
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.admin.admin_addresses import parse_admin_url
from mqbridge.pulsar.wire.names import parse_topic
from tests.pulsar.client.admin.test_admin_http_redirects import FIRST, OWNER, STRANGER, Web, fine, origin_of, to, web

__all__ = ["web"]

BOTH = f"{FIRST},owner:8080"


def fails(error: type[httpx.TransportError]):
    def answer(request: httpx.Request) -> httpx.Response:
        raise error("gone", request=request)

    return answer


def asked(web: Web) -> list[str]:
    return [origin_of(request) for request in web.seen]


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
async def test_the_next_address_is_tried_if_one_is_unreachable_and_remembered(web, method):
    web.services = {OWNER: fine}
    client = web.client(BOTH)
    for _ in range(2):
        assert await client.call(method, "/clusters") == {"result": "ok"}
    assert asked(web) == [FIRST, OWNER, OWNER]
    web.services = {FIRST: fine}  # the other way round
    assert await client.call(method, "/clusters") == {"result": "ok"}
    assert asked(web)[3:] == [OWNER, FIRST]


@pytest.mark.parametrize("error", [httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout, httpx.WriteError])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
async def test_a_call_that_may_have_been_executed_is_repeated_only_if_idempotent(web, method, error):
    web.services = {FIRST: fails(error), OWNER: fine}
    client = web.client(BOTH)
    if method == "GET":
        assert await client.call(method, "/clusters") == {"result": "ok"}
        return
    with pytest.raises(ClusterError):
        await client.call(method, "/clusters")
    assert asked(web) == [FIRST]
    await client.call(method, "/clusters")
    assert asked(web) == [FIRST, OWNER], "the next call begins elsewhere"
    web.services = {OWNER: fails(error), FIRST: fine}
    assert await client.call(method, "/clusters", idempotent=True) == {"result": "ok"}


async def test_positions_and_policies_are_set_at_the_next_address(web):
    """These calls are idempotent, so they are repeated even if the first address may have executed them."""
    topic = parse_topic("t")
    web.services = {FIRST: fails(httpx.ReadError), OWNER: lambda _: httpx.Response(204)}
    admin = Admin(BOTH, 10.0)
    admin._http._http = HttpConnections(httpx.Timeout(10.0), None, web)
    for call in (
        lambda: admin.reset_to(topic, "s", (1, 2)),
        lambda: admin.reset_to_time(topic, "s", 3),
        lambda: admin.set_policy("public/default", "messageTTL", 60),
        lambda: admin.set_topic_policy(topic, "messageTTL", 60),
    ):
        web.seen.clear()
        admin._http._preferred = 0
        await call()
        assert asked(web) == [FIRST, OWNER]
    admin._http._preferred = 0
    with pytest.raises(ClusterError):
        await admin.skip(topic, "s", 5)
    await admin.close()


async def test_a_silent_address_leaves_time_for_the_next(web):
    web.services = {FIRST: fine, OWNER: fine}

    async def silence() -> None:
        if len(web.seen) == 1:
            await asyncio.Event().wait()

    web.before = silence
    assert await web.client(BOTH, timeout_s=2).call("GET", "/clusters") == {"result": "ok"}
    assert asked(web) == [FIRST, OWNER]


async def test_a_slow_modifying_call_gets_the_whole_time(web):
    """Resetting a cursor may take long, and a second call during that time would be refused."""
    web.before = lambda: asyncio.Event().wait()
    with pytest.raises(RequestTimeout):
        await web.client(BOTH, timeout_s=0.1).call("POST", "/resetcursor", idempotent=True)
    assert asked(web) == [FIRST]


async def test_all_addresses_are_silent(web):
    web.before = lambda: asyncio.Event().wait()
    with pytest.raises(RequestTimeout):
        await web.client(BOTH, timeout_s=1).call("GET", "/clusters")
    assert asked(web) == [FIRST, OWNER]


async def test_no_address_is_reachable(web):
    with pytest.raises(Unreachable, match="owner:8080"):
        await web.client(BOTH).call("GET", "/clusters")
    assert asked(web) == [FIRST, OWNER]


async def test_after_a_refusal_no_other_address_is_tried(web):
    web.services = {FIRST: lambda _: httpx.Response(500), OWNER: fine}
    with pytest.raises(ServerRefused):
        await web.client(BOTH).call("GET", "/clusters")
    assert asked(web) == [FIRST]


async def test_after_an_unreachable_owner_the_next_address_is_tried(web):
    """A broker may still redirect to an owner that has died. The call was not executed there, so it may be repeated."""
    web.services = {FIRST: to(STRANGER), OWNER: fine}
    assert await web.client(BOTH).call("PUT", "/clusters") == {"result": "ok"}
    assert asked(web) == [FIRST, STRANGER, OWNER]


async def test_the_credentials_apply_to_all_addresses(web):
    web.services = {OWNER: fine}
    await web.client("http://user:secret@first:8080,owner:8080").call("GET", "/clusters")
    first, second = web.seen
    assert first.headers["authorization"] == second.headers["authorization"]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("http://a:8080/", ["http://a:8080"]),
        ("http://a:8080, http://b:8080", ["http://a:8080", "http://b:8080"]),
        ("https://u:p@a,b/", ["https://u:p@a", "https://u:p@b"]),
        ("http://[::1]:8080,[::2]:8080", ["http://[::1]:8080", "http://[::2]:8080"]),
    ],
)
def test_addresses(text, addresses):
    assert parse_admin_url(text) == addresses
    assert PulsarCluster(service_url="pulsar://a", admin_url=text).admin_url == text.rstrip("/")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:8080", "is not http://host:port"),
        ("http://", "is not http://host:port"),
        ("pulsar://a:6650", "is not http://host:port"),
        ("http://a:8080,", "'' is not http://host:port"),
        ("http://a,https://b", "'https://b' is not http://host:port like the first address"),
        ("http://a,u:p@b", "only the first address may contain user and password"),
    ],
)
def test_invalid_addresses_are_rejected(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        PulsarCluster(service_url="pulsar://a", admin_url=text)


@pytest.mark.parametrize("text", ["user:secret@a:8080", "user:secret,2@a:8080", "http://a,https://user:secret@b"])
def test_the_error_for_an_invalid_address_shows_no_password(text):
    with pytest.raises(ValueError, match="is not http://host:port") as caught:
        parse_admin_url(text)
    assert "secret" not in str(caught.value)


def test_a_guess_is_made_for_each_host():
    made = PulsarCluster.from_url("pulsar://a:6650,b,a:6651")
    assert made.admin_url == "http://a:8080,http://b:8080"
    assert made.admin_is_guessed
