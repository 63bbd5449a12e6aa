"""HTTP calls of the admin interface: follows redirects, tries several addresses, and says in errors what to do.

A broker that does not own a topic redirects to the web address of the owner, and the call is repeated there with its method and
body. While a topic moves, the owner may redirect again. One deadline covers all steps of a call.

Credentials come from the cluster's `auth` or from `admin_url` (`http://user:password@host`). They are sent only to the
addresses of `admin_url` and to hosts that the cluster lists as its brokers, and never over http if the call began with https.
So a malicious redirect cannot get them. A cluster with authorization lists its brokers only to super users: for other users,
`admin_url` has to contain the addresses of all brokers.

With several addresses, the next one is tried if one cannot be reached. A call that the server may have executed is repeated only
if it is idempotent. A GET must leave time for the other addresses; any other call has the whole time until the deadline, because
it may be slow. The address that responded is tried first from then on.
"""

import asyncio
import logging
import re
from typing import Any

import httpx

from mqbridge.errors import ClusterError, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.http_client import HttpConnections, origin_of, parse_json
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.admin.admin_addresses import parse_admin_url
from mqbridge.pulsar.client.admin.admin_errors import are_credentials_refused, missing_permission_error, refused_credentials_error
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth

log = logging.getLogger(__name__)

HTTP_NOT_FOUND = 404
HTTP_CONFLICT = 409
HTTP_PRECONDITION_FAILED = 412
"""Status if the tenant, namespace, topic or subscription to create exists, and for other conflicts."""
REDIRECTS = frozenset({302, 307, 308})
"""HTTP status codes for "repeat this call at another address". Pulsar sends 307; proxies in front of brokers send the others."""
MAX_REDIRECTS = 20
"""Maximum redirects of one call: brokers that disagree about the owner would redirect for ever."""
_FAILURES = {
    400: Failure.FATAL,
    401: Failure.FATAL,
    HTTP_NOT_FOUND: Failure.FATAL,
    405: Failure.FATAL,
    HTTP_CONFLICT: Failure.REFUSED,
    412: Failure.FATAL,
}
"""HTTP status -> kind of failure; every other error status is temporary (RETRY)."""
_PRINTABLE_ASCII = re.compile("[ -~]*")
_CONNECTION_ERRORS = (httpx.TransportError, TimeoutError)
"""Errors of a connection, after which the next address is tried if the call may be repeated."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""The _CONNECTION_ERRORS after which the server certainly has not executed the call."""
GUESS_HINT = (
    ". This address of the REST interface is a guess, made from the service URL: give the right one with ?admin=http://HOST:PORT"
)
"""Added to errors if the address of the REST interface was derived from the service URL."""


class AdminHttp:
    """Connections to the web service of one cluster, and to the brokers that it redirects to."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        tls: Tls | None = None,
        auth: Auth = NO_AUTH,
        is_guess: bool = False,
        proxy: str | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        """`url` contains one address or several, see `parse_admin_url`. `timeout_s` is the deadline of one call.

        `proxy` is the address of a forward proxy, None for direct connections: nothing is taken from the environment. `addresses`
        says where these addresses, and the brokers that they redirect to, can be reached.

        With `is_guess`, errors mention that the address was guessed. Tests pass a `transport` instead of sockets.
        """
        configured = [httpx.URL(f"{address}/admin/v2/") for address in parse_admin_url(url)]
        self._bases = [base.copy_with(username=None, password=None) for base in configured]
        self._preferred = 0
        """Index in `_bases` of the address that is tried first."""
        user, password = configured[0].username, configured[0].password
        self._url_credentials = httpx.BasicAuth(user, password) if user or password else None
        """Credentials of `admin_url`, the same for all its addresses; they take precedence over `auth`."""
        self._auth = auth
        self._timeout_s = timeout_s
        # A configured address that accepts no connection must leave time for the others. Its own IP addresses are tried beside
        # each other, so they need no shares.
        timeout = httpx.Timeout(timeout_s, connect=timeout_s / len(configured))
        self._http = HttpConnections(timeout, tls, transport, proxy=proxy, addresses=addresses)
        self._has_succeeded = False
        """True once a call has succeeded. TLS errors and refused `auth` credentials are FATAL before that, temporary later."""
        self._needs_fresh_credentials = False
        """True if the last credentials were refused, so that the next call reads fresh ones."""
        self._untrusted_origins: set[str] = set()
        """Redirect targets that were called without credentials."""
        self._brokers: frozenset[str] = frozenset()
        """Hosts in the broker list that was requested last."""
        self._guess_hint = GUESS_HINT if is_guess else ""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def call(self, method: str, path: str, body: Any = None, *, idempotent: bool = False) -> Any:
        """Make a call to `path`, below /admin/v2; return the parsed response, None if it is empty. Raises ClusterError.

        `idempotent` is True for a call that may be executed twice, which always holds for GET.
        """
        idempotent = idempotent or method == "GET"
        sends_fresh = self._needs_fresh_credentials  # kept, because a concurrent call may change the attribute
        response = await self._try_addresses(method, path, body, idempotent=idempotent)
        if are_credentials_refused(response) and not sends_fresh:  # `auth` may find new ones by now
            self._needs_fresh_credentials = True
            response = await self._try_addresses(method, path, body, idempotent=idempotent)
        self._needs_fresh_credentials = are_credentials_refused(response)
        if response.status_code >= 300:
            raise self._error_for(response, f"{method} {path}")
        self._has_succeeded = True
        try:
            return parse_json(response) if response.content else None
        except ValueError as error:
            raise self.not_pulsar_error(method, path) from error

    def _error_for(self, response: httpx.Response, call: str) -> ServerRefused:
        """Return the error for an error response; `call` is the method and path, for the error text."""
        if are_credentials_refused(response):
            if (origin := origin_of(response.url)) in self._untrusted_origins:
                problem = (
                    f"{call} was redirected to {origin} and sent there without credentials, "
                    "because the cluster does not list this broker"
                )
                remedy = "give the addresses of all brokers as admin_url"
                return ServerRefused(f"{problem}: {remedy}", response.status_code, Failure.FATAL)
            if self._url_credentials is None:  # the remedy of `auth` does not help with credentials of `admin_url`
                failure = Failure.RETRY if self._has_succeeded else Failure.FATAL
                return refused_credentials_error(response, call, origin, self._auth, failure)
        elif (access_denied := missing_permission_error(response, call, self._auth)) is not None:
            return access_denied
        problem = f"{call}{self._http.proxy_note}: HTTP {response.status_code}: {response.text[:300]}"
        if "json" not in response.headers.get("content-type", ""):  # Pulsar's own error responses are JSON
            problem += self._guess_hint
        return ServerRefused(problem, response.status_code, _FAILURES.get(response.status_code, Failure.RETRY))

    def not_pulsar_error(self, method: str, path: str) -> ClusterError:
        """Return the error for a response that is not from Pulsar's REST interface."""
        origin = origin_of(self._bases[self._preferred])
        problem = f"{origin} did not answer {method} {path} like Pulsar's REST interface{self._guess_hint}"
        return ClusterError(problem, Failure.FATAL)

    async def _try_addresses(self, method: str, path: str, body: Any, *, idempotent: bool) -> httpx.Response:
        """Return the response to this call. Addresses are tried in turn, beginning with the preferred one.

        After an error of the connection the next address is tried, if the call is `idempotent` or certainly was not sent.
        """
        count = len(self._bases)
        first = self._preferred
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        for attempt in range(1, count + 1):
            index = (first + attempt - 1) % count
            timeout_s = deadline - loop.time()
            if method == "GET":  # leave time for the other addresses
                timeout_s /= count - attempt + 1
            try:
                response = await self._follow_redirects(self._bases[index], method, path, body, timeout_s)
            except ClusterError as error:
                cause = error.__cause__
                if not isinstance(cause, _CONNECTION_ERRORS):
                    raise
                self._preferred = (index + 1) % count
                may_repeat = idempotent or isinstance(cause, _NEVER_SENT)
                if attempt == count or not may_repeat or loop.time() >= deadline:
                    raise
                log.info("admin request failed, trying next address %s: %s", origin_of(self._bases[self._preferred]), error)
            else:
                self._preferred = index
                return response
        raise AssertionError  # there is at least one address

    async def _follow_redirects(self, base: httpx.URL, method: str, path: str, body: Any, timeout_s: float) -> httpx.Response:
        """Send a call to the address `base` and follow the redirects; `timeout_s` is for all steps together."""
        url = httpx.URL(f"{base}{path.removeprefix('/')}")
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    response = await self._send(method, base, url, body)
                    if response.status_code not in REDIRECTS:
                        return response
                    url = _redirect_target(response, f"{method} {path}")
        except (httpx.TimeoutException, TimeoutError) as error:
            raise RequestTimeout(
                f"{self._http.explain_timeout(error, url)} {method} {path} before the deadline{self._guess_hint}"
            ) from error
        except (
            httpx.InvalidURL,  # httpx parses the address of a redirect before `_redirect_target` does
            httpx.RemoteProtocolError,
            httpx.DecodingError,
        ) as error:
            raise ClusterError(
                f"{self._http.name(url)} sent an invalid response to {method} {path}: {error}{self._guess_hint}"
            ) from error
        except httpx.TransportError as error:
            is_permanent = self._http.explain_tls(error, url) is not None and not self._has_succeeded
            problem = f"{self._http.explain_connecting(error, url)}{self._guess_hint}"
            raise Unreachable(problem, Failure.FATAL if is_permanent else Failure.RETRY) from error
        raise ClusterError(
            f"{method} {path}: more than {MAX_REDIRECTS} redirects, because the brokers do not agree on the topic's owner"
        )

    async def _send(self, method: str, base: httpx.URL, url: httpx.URL, body: Any) -> httpx.Response:
        """Send one request to `url`, with credentials only if `url` is trusted; `base` is the address that the call began at."""
        has_credentials = self._url_credentials is not None or self._auth is not NO_AUTH
        if not has_credentials or await self._is_trusted(base, url):
            return await self._send_with_credentials(method, url, body)
        self._untrusted_origins.add(origin_of(url))
        return await self._http.request(method, url, json=body)

    async def _send_with_credentials(self, method: str, url: httpx.URL, body: Any) -> httpx.Response:
        """Send one request with the credentials of `admin_url`, or else with those of `auth`, if there are any."""
        headers = {} if self._url_credentials is not None else await self._auth.headers(fresh=self._needs_fresh_credentials)
        if not all(map(_PRINTABLE_ASCII.fullmatch, headers.values())):  # the error of httpx would contain the secret
            problem = f"{self._auth.description} cannot be sent to {origin_of(url)}: it must be one line of printable ASCII text"
            raise ClusterError(problem, Failure.RETRY if self._has_succeeded else Failure.FATAL)
        return await self._http.request(method, url, headers=headers, auth=self._url_credentials, json=body)

    async def _is_trusted(self, base: httpx.URL, url: httpx.URL) -> bool:
        """Return True if credentials may be sent to `url`: it is a configured address, or a broker that the cluster lists.

        A broker's http address is not trusted if the call began with https.
        """
        if origin_of(url) in map(origin_of, self._bases):
            return True
        if base.scheme == "https" and url.scheme != "https":
            return False
        if url.host not in self._brokers:
            self._brokers = _broker_hosts(await self._send_with_credentials("GET", base.join("brokers"), body=None))
        return url.host in self._brokers


def _broker_hosts(response: httpx.Response) -> frozenset[str]:
    """Return the hosts of a broker list such as `["host:8080"]`; none if the request was refused or the list is invalid."""
    try:
        brokers = parse_json(response) if response.status_code == 200 else ()
        return frozenset(httpx.URL(f"//{broker}").host for broker in brokers)
    except (ValueError, TypeError, httpx.InvalidURL):
        return frozenset()


def _redirect_target(response: httpx.Response, call: str) -> httpx.URL:
    """Return the target of a redirect, without credentials that it may contain.

    `call` is the method and path, for the error text. Raises ClusterError if the target is not a valid address.
    """
    location = response.headers.get("location", "")
    url = response.url.join(location)
    if not location or url.scheme not in {"http", "https"}:
        raise ClusterError(f"{call} was redirected to {location!r}, which is not an HTTP address")
    return url.copy_with(username=None, password=None, fragment=None)
