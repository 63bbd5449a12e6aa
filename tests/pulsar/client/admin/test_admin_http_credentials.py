"""Credentials of the admin interface: where they are sent, and errors for refused credentials and missing permissions."""

import asyncio
import ssl
import traceback
from pathlib import Path

import httpx
import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.net.http_client import HttpConnections
from mqbridge.net.secret import Secret
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.admin.admin_http import AdminHttp
from mqbridge.pulsar.client.connection.auth import Auth, BasicAuth, TokenAuth
from mqbridge.pulsar.client.connection.authorization import AccessDenied
from tests.kit.authority import Authority
from tests.pulsar.client.admin.test_admin_http_redirects import FIRST, OWNER, STRANGER, Answer, Web, fine, to, web

__all__ = ["web"]

PAGE = "<html><title>Error 401 Authentication required</title></html>"


class Source(Auth):
    """Returns `current` if fresh credentials are requested, `stale` otherwise."""

    method = "token"

    def __init__(self, stale: str, current: str | None = None) -> None:
        self.stale, self.current = stale, current or stale

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.current if fresh else self.stale}"}

    @property
    def principal(self) -> str:
        return "app"

    @property
    def description(self) -> str:
        return "a token from somewhere"

    @property
    def remedy(self) -> str:
        return "put a new one there"


def client(web: Web, auth: Auth, url: str = FIRST) -> AdminHttp:
    made = AdminHttp(url, 10.0, web, auth=auth)
    web.made.append(made)
    return made


def demanding(token: str, answer: Answer = fine) -> Answer:
    """Return a web service that, as Pulsar's, responds with an HTML page to any other token."""

    def answered(request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") == f"Bearer {token}":
            return answer(request)
        return httpx.Response(401, text=PAGE, headers={"content-type": "text/html"})

    return answered


def refusing(status: int, reason: str) -> Answer:
    return lambda _: httpx.Response(status, json={"reason": reason})


async def test_credentials_are_sent_to_configured_addresses_and_listed_brokers(web: Web) -> None:
    web.services = {FIRST: demanding("one", to(OWNER)), OWNER: demanding("one")}
    assert await client(web, Source("one")).call("GET", "/clusters") == {"result": "ok"}


async def test_credentials_are_sent_to_no_other_host(web: Web) -> None:
    web.services = {FIRST: demanding("one", to(STRANGER)), STRANGER: demanding("one")}
    with pytest.raises(ServerRefused, match=r"was redirected to http://stranger:8080.*the addresses of all brokers") as caught:
        await client(web, Source("one")).call("GET", "/clusters")
    assert caught.value.failure is Failure.FATAL
    assert all("authorization" not in request.headers for request in web.at(STRANGER))


async def test_refused_credentials_are_read_again(web: Web) -> None:
    web.services = {FIRST: demanding("new")}
    admin = client(web, Source("old", "new"))
    assert await admin.call("POST", "/clusters", {}) == {"result": "ok"}
    assert [request.headers["authorization"] for request in web.seen] == ["Bearer old", "Bearer new"]


async def test_an_error_for_refused_credentials_names_their_source_and_the_remedy(web: Web) -> None:
    web.services = {FIRST: demanding("other")}
    admin = client(web, Source("one"))
    with pytest.raises(ServerRefused) as caught:
        await admin.call("GET", "/clusters")
    assert str(caught.value) == (
        "http://first:8080 refuses a token from somewhere: put a new one there (GET /clusters: HTTP 401)"
    )
    assert caught.value.failure is Failure.FATAL
    web.services = {FIRST: fine}
    await admin.call("GET", "/clusters")
    web.services = {FIRST: demanding("other")}
    with pytest.raises(ServerRefused) as caught:
        await admin.call("GET", "/clusters")
    assert caught.value.failure is Failure.RETRY, "it has let us in before"


async def test_the_error_without_credentials_asks_to_configure_some(web: Web) -> None:
    web.services = {FIRST: demanding("one")}
    made = web.client()
    with pytest.raises(ServerRefused, match="configure `auth` for this cluster"):
        await made.call("GET", "/clusters")


@pytest.mark.parametrize(
    ("status", "operation", "needs"),
    [
        (
            401,
            "validateTopicOperation for operation [SKIP] on topic [t]",
            "grant the role the permission to consume in this namespace",
        ),
        (
            401,
            "validateTopicOperation for operation [LOOKUP] on topic [t]",
            "grant the role the permission to produce or consume in this namespace",
        ),
        (401, "validateBothTenantOperationAndSuperUser for operation [LIST_TENANTS] ", "this needs a super user"),
        (
            403,
            "validateTopicPolicyOperation for operation [WRITE] on policy [P]",
            "this needs an administrator of the tenant",
        ),
    ],
)
async def test_an_error_for_a_missing_permission_names_role_and_operation(
    web: Web, status: int, operation: str, needs: str
) -> None:
    web.services = {FIRST: refusing(status, f"Unauthorized to {operation}")}
    with pytest.raises(AccessDenied) as caught:
        await client(web, Source("one")).call("GET", "/x")
    assert str(caught.value).startswith(f"role 'app' may not GET /x: {needs}")
    assert str(caught.value).endswith(f"(HTTP {status}: Unauthorized to {operation.strip()})")
    assert (caught.value.failure, caught.value.code) == (Failure.FATAL, status)


async def test_credentials_in_the_address_take_precedence(web: Web) -> None:
    web.services = {FIRST: fine}
    await client(web, BasicAuth("a", Secret("b")), "http://x:y@first:8080").call("GET", "/clusters")
    assert web.seen[0].headers["authorization"] == "Basic eDp5"


async def test_a_changed_certificate_makes_a_new_client_and_breaks_no_call(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = Tls(TlsSettings(authorities=authority.certificate))
    connections = HttpConnections(httpx.Timeout(5.0), tls)
    async with connections._borrow_client("https") as before:
        async with connections._borrow_client("https") as same:
            assert same is before
        Authority(tmp_path / "other").certificate.replace(authority.certificate)
        async with connections._borrow_client("https") as after:
            assert after is not before
        assert not before.is_closed, "its call is still under way"
    assert before.is_closed
    await connections.close()
    assert after.is_closed


async def test_a_client_replaced_while_it_closes_the_one_before_stays_open_for_its_call() -> None:
    is_closing, may_close = asyncio.Event(), asyncio.Event()

    class SlowToClose(httpx.MockTransport):
        async def aclose(self) -> None:
            is_closing.set()
            await may_close.wait()

    class ChangingTls(Tls):
        async def context(self) -> ssl.SSLContext:
            return ssl.create_default_context()

    connections = HttpConnections(httpx.Timeout(5.0), ChangingTls(), SlowToClose(lambda _: httpx.Response(200)))
    url = httpx.URL("https://host")
    await connections.request("GET", url)
    second = asyncio.create_task(connections.request("GET", url))
    await is_closing.wait()
    third = asyncio.create_task(connections.request("GET", url))
    await asyncio.sleep(0)
    may_close.set()
    assert [response.status_code for response in await asyncio.gather(second, third)] == [200, 200]
    await connections.close()


async def test_tls_errors_name_the_option(tmp_path: Path) -> None:
    connections = HttpConnections(httpx.Timeout(5.0), Tls(TlsSettings()))
    error = httpx.ConnectError("failed")
    error.__cause__ = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")
    assert "tls.certificate" in (connections.explain_tls(error, httpx.URL("https://host")) or "")
    assert connections.explain_tls(httpx.ConnectError("refused"), httpx.URL("https://host")) is None
    broken = HttpConnections(httpx.Timeout(5.0), Tls(TlsSettings(authorities=tmp_path / "none")))
    with pytest.raises(ClusterError, match=r"tls\.authorities"):
        await broken.request("GET", httpx.URL("https://127.0.0.1:1"))


@pytest.mark.parametrize("token", ["canary-one\ncanary-two", "canary-\x00", "canary-\u00e9"])
async def test_credentials_invalid_as_a_header_are_refused_without_showing_them(token: str, web: Web) -> None:
    """For example, a token that was written in several lines."""
    web.services = {FIRST: fine}
    with pytest.raises(ClusterError, match=r"a token from the configuration cannot be sent to .*: it must be one line") as caught:
        await client(web, TokenAuth(Secret(token))).call("GET", "/clusters")
    assert caught.value.failure is Failure.FATAL
    assert "canary" not in "".join(traceback.format_exception(caught.value))


async def test_calls_that_are_refused_at_once_all_get_fresh_credentials(web: Web) -> None:
    web.services = {FIRST: demanding("new")}

    class Slow(Source):
        async def headers(self, *, fresh: bool = False) -> dict[str, str]:
            await asyncio.sleep(0)
            return await super().headers(fresh=fresh)

    admin = client(web, Slow("old", "new"))
    answers = await asyncio.gather(*(admin.call("GET", "/clusters") for _ in range(5)))
    assert answers == [{"result": "ok"}] * 5
