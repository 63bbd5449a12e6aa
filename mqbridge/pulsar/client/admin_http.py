"""HTTP calls of the admin interface: errors with remedies, redirects, several addresses.

A broker that does not own a topic redirects to the web address of the owner, and while a topic moves the owner may redirect
again. A call is repeated there with its method and its body. Its credentials (of the cluster's `auth`, or of `admin_url` as in
`http://user:password@host`) are sent only to the addresses of `admin_url` and to hosts that the cluster lists as its brokers,
and never from https to http: so a malicious redirect cannot get them. A cluster with authorization lists its brokers only to
super users. One deadline covers all steps of a call.

With several addresses, the next one is tried when one cannot be reached. A call that may have been carried out is repeated only
if it is idempotent, and a modifying call is not given up before the deadline: it may be slow. The address that answered is
tried first from then on.
"""

import asyncio
import logging
import re
from typing import Any
from urllib.parse import quote

import httpx

from mqbridge.errors import ClusterError, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.tls.tls import Tls
from mqbridge.net.web import HttpConnections
from mqbridge.pulsar.client.admin_addresses import parse_admin_url
from mqbridge.pulsar.client.admin_errors import are_credentials_refused, denied, refused_credentials
from mqbridge.pulsar.client.auth import NO_AUTH, Auth
from mqbridge.pulsar.wire.names import TopicName

log = logging.getLogger(__name__)

MISSING = 404
EXISTS = 409
REDIRECTS = frozenset({302, 307, 308})
"""All mean the same call at another address. Pulsar sends 307; the others come from proxies in front of brokers."""
MAX_REDIRECTS = 20
"""As for lookups: brokers that disagree on an owner would redirect for ever."""
_FAILURES = {401: Failure.FATAL, MISSING: Failure.FATAL, 405: Failure.FATAL, EXISTS: Failure.REFUSED}
_FAILURES |= {412: Failure.FATAL, 400: Failure.FATAL}
"""Every other status is temporary."""
_IS_HEADER = re.compile("[ -~]*")
_LOST = (httpx.TransportError, TimeoutError)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
GUESSED = (
    ". This address of the REST interface is a guess, made from the service URL: give the right one with ?admin=http://HOST:PORT"
)


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
    ) -> None:
        """`url` may hold several addresses; a `transport` replaces sockets."""
        given = [httpx.URL(f"{one}/admin/v2/") for one in parse_admin_url(url)]
        self._bases = [base.copy_with(username=None, password=None) for base in given]
        self._at = 0
        """Index of the address that is tried first."""
        user, password = given[0].username, given[0].password
        self._own = httpx.BasicAuth(user, password) if user or password else None
        """Credentials of `admin_url`, which take precedence over those of the cluster."""
        self._auth = auth
        self._timeout_s = timeout_s
        timeout = httpx.Timeout(timeout_s, connect=timeout_s / len(given))  # a silent address leaves time for the others
        self._http = HttpConnections(timeout, tls, transport)
        self._admitted = False
        """True once a call has succeeded."""
        self._fresh = False
        """True if the credentials were refused, so that fresh ones are needed."""
        self._withheld: set[str] = set()
        """Redirect targets that got no credentials."""
        self._brokers: frozenset[str] = frozenset()
        """Broker hosts that the cluster listed last."""
        self._advice = GUESSED if is_guess else ""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def call(self, method: str, path: str, body: Any = None, *, repeats: bool = False) -> Any:
        """Make a call; return the parsed response, None if empty. Raises ClusterError.

        With `repeats` it may be carried out twice, like every GET.
        """
        may_repeat = repeats or method == "GET"
        was_fresh = self._fresh  # a concurrent call may set it before this one is answered
        answer = await self._answer(method, path, body, repeats=may_repeat)
        if are_credentials_refused(answer) and not was_fresh:  # they may have been replaced
            self._fresh = True
            answer = await self._answer(method, path, body, repeats=may_repeat)
        self._fresh = are_credentials_refused(answer)
        if answer.status_code >= 300:
            raise self._refused(answer, f"{method} {path}")
        self._admitted = True
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise self.something_else(method, path) from error

    def _refused(self, answer: httpx.Response, call: str) -> ServerRefused:
        if are_credentials_refused(answer):
            if (origin := _origin(answer.url)) in self._withheld:
                problem = (
                    f"{call} was redirected to {origin}, which the cluster does not list as a broker, so without credentials"
                )
                remedy = "give the addresses of all brokers as admin_url"
                return ServerRefused(f"{problem}: {remedy}", answer.status_code, Failure.FATAL)
            if self._own is None:
                failure = Failure.RETRY if self._admitted else Failure.FATAL
                return refused_credentials(answer, call, origin, self._auth, failure)
        elif (right := denied(answer, call, self._auth)) is not None:
            return right
        problem = f"{call}: HTTP {answer.status_code}: {answer.text[:300]}"
        if "json" not in answer.headers.get("content-type", ""):  # Pulsar refuses in JSON
            problem += self._advice
        return ServerRefused(problem, answer.status_code, _FAILURES.get(answer.status_code, Failure.RETRY))

    def something_else(self, method: str, path: str) -> ClusterError:
        """Return the error for a response that is not Pulsar's."""
        problem = f"{_origin(self._bases[self._at])} answered {method} {path} as Pulsar's REST interface does not{self._advice}"
        return ClusterError(problem, Failure.FATAL)

    async def _answer(self, method: str, path: str, body: Any, *, repeats: bool) -> httpx.Response:
        """Return the response of the broker that serves this call; tries the addresses in turn, from the last good one."""
        count, first, loop = len(self._bases), self._at, asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        for tried in range(1, count + 1):
            at = (first + tried - 1) % count
            seconds = deadline - loop.time()
            if method == "GET":  # other calls may be in progress: repeating them concurrently does not help
                seconds /= count - tried + 1
            try:
                answer = await self._follow(self._bases[at], method, path, body, seconds)
            except ClusterError as error:
                cause = error.__cause__
                if not isinstance(cause, _LOST):
                    raise
                self._at = (at + 1) % count
                may_repeat = repeats or isinstance(cause, _NEVER_SENT)
                if tried == count or not may_repeat or loop.time() >= deadline:
                    raise
                log.info("%s; asking %s", error, _origin(self._bases[self._at]))
            else:
                self._at = at
                return answer
        raise AssertionError  # there is at least one address

    async def _follow(self, base: httpx.URL, method: str, path: str, body: Any, seconds: float) -> httpx.Response:
        """Send a call and follow its redirects within this time."""
        url = httpx.URL(f"{base}{path.removeprefix('/')}")
        try:
            async with asyncio.timeout(seconds):
                for _ in range(MAX_REDIRECTS + 1):
                    answer = await self._ask(method, base, url, body)
                    if answer.status_code not in REDIRECTS:
                        return answer
                    url = _next(answer, f"{method} {path}")
        except (httpx.TimeoutException, TimeoutError) as error:
            raise RequestTimeout(f"{_origin(url)} did not answer {method} {path} in time{self._advice}") from error
        except (
            httpx.InvalidURL,
            httpx.RemoteProtocolError,
            httpx.DecodingError,
        ) as error:  # httpx reads the address of a redirect before we do
            raise ClusterError(f"{_origin(url)} gave an unusable answer to {method} {path}: {error}{self._advice}") from error
        except httpx.TransportError as error:
            if (why := self._http.explain(error, url.host)) is not None:
                failure = Failure.RETRY if self._admitted else Failure.FATAL
                raise Unreachable(f"{_origin(url)} cannot be reached by TLS: {why}{self._advice}", failure) from error
            raise Unreachable(f"{_origin(url)} cannot be reached: {error}{self._advice}") from error
        raise ClusterError(f"{method} {path}: more than {MAX_REDIRECTS} redirects, the brokers do not agree on who answers")

    async def _ask(self, method: str, base: httpx.URL, url: httpx.URL, body: Any) -> httpx.Response:
        has_credentials = self._own is not None or self._auth is not NO_AUTH
        if not has_credentials or await self._is_trusted(base, url):
            return await self._ask_as_ourselves(method, url, body)
        self._withheld.add(_origin(url))
        return await self._http.request(method, url, json=body)

    async def _ask_as_ourselves(self, method: str, url: httpx.URL, body: Any) -> httpx.Response:
        headers = {} if self._own is not None else await self._auth.headers(fresh=self._fresh)
        if not all(map(_IS_HEADER.fullmatch, headers.values())):  # httpx would show the value
            problem = f"{self._auth.shown} cannot be sent to {_origin(url)}: it must be one line of printable ASCII text"
            raise ClusterError(problem, Failure.RETRY if self._admitted else Failure.FATAL)
        return await self._http.request(method, url, headers=headers, auth=self._own, json=body)

    async def _is_trusted(self, base: httpx.URL, url: httpx.URL) -> bool:
        """Return True if credentials may be sent there: to a configured address or to a broker of the cluster."""
        if _origin(url) in map(_origin, self._bases):
            return True
        if base.scheme == "https" and url.scheme != "https":
            return False
        if url.host not in self._brokers:
            self._brokers = _hosts(await self._ask_as_ourselves("GET", base.join("brokers"), None))
        return url.host in self._brokers


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _hosts(brokers: httpx.Response) -> frozenset[str]:
    """Return the hosts of a broker list such as `["host:8080"]`; none if it is refused or invalid."""
    try:
        return frozenset(httpx.URL(f"//{broker}").host for broker in (brokers.json() if brokers.status_code == 200 else ()))
    except (ValueError, TypeError, httpx.InvalidURL):
        return frozenset()


def _next(answer: httpx.Response, call: str) -> httpx.URL:
    """Return the target of a redirect. Raises ClusterError if it is not a valid address."""
    location = answer.headers.get("location", "")
    url = answer.url.join(location)
    if not location or url.scheme not in {"http", "https"}:
        raise ClusterError(f"{call}: redirected to {location!r}, which is not an HTTP address")
    return url.copy_with(username=None, password=None, fragment=None)


def path_of(topic: TopicName) -> str:
    """Return a topic's path below /admin/v2."""
    return f"/{topic.domain}/{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"
