"""Redirects of the admin interface are followed to the owner, within limits; scripted, without sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.pulsar.client.admin.admin_http import MAX_REDIRECTS, AdminHttp

Answer = Callable[[httpx.Request], httpx.Response]
FIRST, OWNER, STRANGER = "http://first:8080", "http://owner:8080", "http://stranger:8080"
BASE = "/admin/v2"


class Web(httpx.AsyncBaseTransport):
    """Web services by origin; `seen` has the requests that they received."""

    def __init__(self) -> None:
        self.seen: list[httpx.Request] = []
        self.services: dict[str, Answer] = {}
        self.before: Callable[[], Awaitable[None]] | None = None
        self.made: list[AdminHttp] = []

    def client(self, url: str = FIRST, timeout_s: float = 10.0) -> AdminHttp:
        client = AdminHttp(url, timeout_s, self)
        self.made.append(client)
        return client

    def at(self, origin: str) -> list[httpx.Request]:
        return [one for one in self.seen if origin_of(one) == origin]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self.before is not None:
            await self.before()
        if (service := self.services.get(origin_of(request))) is None:
            raise httpx.ConnectError("nobody listens", request=request)
        return service(request)


def origin_of(request: httpx.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode()}"


def to(origin: str, status: int = 307) -> Answer:
    """Return a service that redirects every call, as brokers do: to the same path, with `authoritative=true` as the query."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == f"{BASE}/brokers":
            return httpx.Response(200, json=["first:8080", "owner:8080"])
        location = f"{origin}{request.url.raw_path.decode().partition('?')[0]}?authoritative=true"
        return httpx.Response(status, headers={"location": location})

    return answer


def fine(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"result": "ok"})


@pytest_asyncio.fixture
async def web() -> AsyncIterator[Web]:
    web = Web()
    yield web
    for client in web.made:
        await client.close()


@pytest.mark.parametrize("status", [302, 307, 308])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
async def test_a_redirected_call_keeps_its_method_and_body(web, status, method):
    web.services = {FIRST: to(OWNER, status), OWNER: fine}
    body = {"ledgerId": 3} if method in {"PUT", "POST"} else None
    assert await web.client().call(method, "/persistent/public/default/a%2Fb/stats?force=true", body) == {"result": "ok"}
    asked, repeated = web.seen
    assert asked.url.raw_path == b"/admin/v2/persistent/public/default/a%2Fb/stats?force=true"
    assert (repeated.method, origin_of(repeated)) == (method, OWNER)
    assert repeated.url.raw_path == b"/admin/v2/persistent/public/default/a%2Fb/stats?authoritative=true"
    assert (repeated.content, repeated.headers.get("content-type")) == (asked.content, asked.headers.get("content-type"))
    assert bool(repeated.content) is (body is not None)


async def test_a_redirect_may_name_only_a_path(web):
    web.services[FIRST] = lambda request: (
        fine(request) if request.url.path == "/moved" else httpx.Response(307, headers={"location": "/moved"})
    )
    assert await web.client().call("GET", "/clusters") == {"result": "ok"}


async def test_endless_redirects_end_in_an_error(web):
    web.services = {FIRST: to(OWNER), OWNER: to(FIRST)}
    with pytest.raises(ClusterError, match="do not agree") as caught:
        await web.client().call("GET", "/clusters")
    assert caught.value.failure is Failure.RETRY
    assert len(web.seen) == MAX_REDIRECTS + 1


async def test_as_many_redirects_as_allowed_are_followed(web):
    left = MAX_REDIRECTS

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal left
        left -= 1
        return to(FIRST)(request) if left >= 0 else fine(request)

    web.services[FIRST] = answer
    assert await web.client().call("GET", "/clusters") == {"result": "ok"}


async def test_one_deadline_holds_for_all_steps(web):
    """No single step takes as long as the deadline, so a limit per step would never end the call."""
    web.services = {FIRST: to(OWNER), OWNER: to(FIRST)}
    web.before = lambda: asyncio.sleep(0.3)
    with pytest.raises(RequestTimeout):
        await web.client(timeout_s=1).call("GET", "/clusters")
    assert 1 < len(web.seen) <= MAX_REDIRECTS


async def test_an_unreachable_owner_is_a_temporary_error(web):
    web.services[FIRST] = to(OWNER)
    with pytest.raises(Unreachable, match="owner:8080") as caught:
        await web.client().call("GET", "/clusters")
    assert caught.value.failure is Failure.RETRY


@pytest.mark.parametrize("location", ["", "ftp://owner/x", "mailto:owner", "http://owner:x/"])
async def test_a_redirect_to_an_invalid_address_is_an_error(web, location):
    web.services[FIRST] = lambda _: httpx.Response(307, headers={"location": location})
    with pytest.raises(ClusterError, match="GET /clusters"):
        await web.client().call("GET", "/clusters")
    assert len(web.seen) == 1


async def test_redirects_that_may_change_the_method_are_not_followed(web):
    web.services[FIRST] = to(OWNER, 303)
    with pytest.raises(ServerRefused) as caught:
        await web.client().call("POST", "/x", 1)
    assert caught.value.code == 303
    assert not web.at(OWNER)


# --- credentials ------------------------------------------------------------------------------------------------------


def secret(url: str) -> str:
    return url.replace("://", "://me:secret@")


async def test_credentials_go_to_brokers_of_the_cluster(web):
    web.services = {FIRST: to(OWNER), OWNER: fine}
    client = web.client(secret(FIRST))
    for _ in range(2):
        await client.call("GET", "/clusters")
    assert all("authorization" in one.headers for one in web.seen)
    assert [one.url.path for one in web.seen].count(f"{BASE}/brokers") == 1, "the list is kept"


async def test_credentials_are_not_sent_to_other_hosts(web):
    web.services = {FIRST: to(STRANGER), STRANGER: fine}
    assert await web.client(secret(FIRST)).call("GET", "/clusters") == {"result": "ok"}
    assert all("authorization" in one.headers for one in web.at(FIRST))
    assert ["authorization" in one.headers for one in web.at(STRANGER)] == [False]


@pytest.mark.parametrize("listed", [b"no list", b"7", b'["a b:x"]', b"[]"])
async def test_credentials_are_not_forwarded_without_a_broker_list(web, listed):
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=listed) if request.url.path == f"{BASE}/brokers" else to(OWNER)(request)

    web.services = {FIRST: answer, OWNER: fine}
    assert await web.client(secret(FIRST)).call("GET", "/clusters") == {"result": "ok"}
    assert ["authorization" in one.headers for one in web.at(OWNER)] == [False]


async def test_credentials_are_not_sent_from_https_to_http(web):
    web.services = {"https://first:8443": to(OWNER), OWNER: fine}
    await web.client("https://me:secret@first:8443").call("GET", "/clusters")
    assert ["authorization" in one.headers for one in web.at(OWNER)] == [False]


async def test_credentials_are_in_no_error(web):
    with pytest.raises(Unreachable) as caught:
        await web.client(secret(FIRST)).call("GET", "/clusters")
    assert "secret" not in str(caught.value)
    assert "http://first:8080" in str(caught.value)


async def test_a_response_with_invalid_compression_is_an_error(web):
    web.services[FIRST] = lambda _: httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Garbage())
    with pytest.raises(ClusterError, match="invalid response"):
        await web.client().call("GET", "/clusters")


class Garbage(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"this is no gzip"
