"""HTTP calls of the admin interface, with errors that say what helps, and followed to the broker that answers them.

A broker that does not own a topic answers with a redirect to the web address of the one that does, and while a topic changes
hands that one may send the call on. A call is repeated there with its method and its body. Its credentials (those of the
cluster's `auth`, or of `admin_url` as in `http://user:password@host`) go along only to where `admin_url` points and to hosts that
the cluster lists as its brokers, and never from https to http: whoever can redirect a call cannot have them sent elsewhere. Only
super users are told the brokers by a cluster that asks for rights. One deadline holds for all the steps of a call.

Where several addresses are configured, the next one is asked when one cannot be reached. A call that may have been carried out
is repeated only if that changes nothing, and one that changes something is not given up before its time: it may be slow. The one
that answered is asked first from then on.
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
from mqbridge.pulsar.client.admin_refusals import are_credentials_refused, denied, refused_credentials
from mqbridge.pulsar.client.auth import NO_AUTH, Auth
from mqbridge.pulsar.wire.names import TopicName

log = logging.getLogger(__name__)

MISSING = 404
EXISTS = 409
REDIRECTS = frozenset({302, 307, 308})
"""All of them mean the same call at another address. Pulsar's is 307; the others come from what stands before brokers."""
MAX_REDIRECTS = 20
"""As for lookups: brokers that do not agree on an owner would send a call round for ever."""
_FAILURES = {401: Failure.FATAL, MISSING: Failure.FATAL, 405: Failure.FATAL, EXISTS: Failure.REFUSED}
_FAILURES |= {412: Failure.FATAL, 400: Failure.FATAL}
"""Every other status may pass."""
_IS_HEADER = re.compile("[ -~]*")
_LOST = (httpx.TransportError, TimeoutError)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
GUESSED = (
    ". This address of the REST interface is a guess, made from the service URL: give the right one with ?admin=http://HOST:PORT"
)


class AdminHttp:
    """Connections to the web service of one cluster, and to the brokers that it sends calls on to."""

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
        """`url` may hold several addresses; with a `transport` the calls go through it instead of sockets."""
        given = [httpx.URL(f"{one}/admin/v2/") for one in parse_admin_url(url)]
        self._bases = [base.copy_with(username=None, password=None) for base in given]
        self._at = 0
        """Of the address that is asked first."""
        user, password = given[0].username, given[0].password
        self._own = httpx.BasicAuth(user, password) if user or password else None
        """Credentials of `admin_url`, which go before those of the cluster."""
        self._auth = auth
        self._timeout_s = timeout_s
        timeout = httpx.Timeout(timeout_s, connect=timeout_s / len(given))  # one that is silent leaves time for the others
        self._http = HttpConnections(timeout, tls, transport)
        self._admitted = False
        """Whether it has ever let us in."""
        self._fresh = False
        """The credentials were refused: the next ones are to be new."""
        self._withheld: set[str] = set()
        """Where calls were sent on to without credentials."""
        self._brokers: frozenset[str] = frozenset()
        """Hosts that the cluster listed the last time it was asked."""
        self._advice = GUESSED if is_guess else ""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def call(self, method: str, path: str, body: Any = None, *, repeats: bool = False) -> Any:
        """One call; the parsed answer, None when it is empty. Raises ClusterError.

        A call that `repeats` may be carried out twice, as every GET may.
        """
        may_repeat = repeats or method == "GET"
        was_fresh = self._fresh  # another call may be refused, and ask for fresh ones, before this one is answered
        answer = await self._answer(method, path, body, repeats=may_repeat)
        if are_credentials_refused(answer) and not was_fresh:  # they may have been exchanged
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
                said = f"{call} was sent on to {origin}, which is no broker that the cluster lists, and got no credentials there"
                return ServerRefused(f"{said}: give the addresses of all brokers as admin_url", answer.status_code, Failure.FATAL)
            if self._own is None:
                failure = Failure.RETRY if self._admitted else Failure.FATAL
                return refused_credentials(answer, call, origin, self._auth, failure)
        elif (right := denied(answer, call, self._auth)) is not None:
            return right
        said = f"{call}: HTTP {answer.status_code}: {answer.text[:300]}"
        if "json" not in answer.headers.get("content-type", ""):  # Pulsar refuses in JSON
            said += self._advice
        return ServerRefused(said, answer.status_code, _FAILURES.get(answer.status_code, Failure.RETRY))

    def something_else(self, method: str, path: str) -> ClusterError:
        """The answer is none of Pulsar's."""
        problem = f"{_origin(self._bases[self._at])} answered {method} {path} as Pulsar's REST interface does not{self._advice}"
        return ClusterError(problem, Failure.FATAL)

    async def _answer(self, method: str, path: str, body: Any, *, repeats: bool) -> httpx.Response:
        """What the broker that serves this call answers; the addresses are asked in turn, from the one that answered last."""
        count, first, loop = len(self._bases), self._at, asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        for tried in range(1, count + 1):
            at = (first + tried - 1) % count
            seconds = deadline - loop.time()
            if method == "GET":  # whatever else was sent may be under way: to ask for it again beside that helps nobody
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
        """What is answered in this time by who is asked first, or by who the call is sent on to."""
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
            raise ClusterError(
                f"{_origin(url)} gave no answer to {method} {path} that can be used: {error}{self._advice}"
            ) from error
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
        """Whether credentials may go there: to where the configuration points, or to a broker of the cluster."""
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
    """Where the brokers of a list such as `["host:8080"]` are; nowhere when it is refused, or no such list."""
    try:
        return frozenset(httpx.URL(f"//{broker}").host for broker in (brokers.json() if brokers.status_code == 200 else ()))
    except (ValueError, TypeError, httpx.InvalidURL):
        return frozenset()


def _next(answer: httpx.Response, call: str) -> httpx.URL:
    """Where a redirect leads. Raises ClusterError when that is no address for a call."""
    location = answer.headers.get("location", "")
    url = answer.url.join(location)
    if not location or url.scheme not in {"http", "https"}:
        raise ClusterError(f"{call}: redirected to {location!r}, which is no address of a web service")
    return url.copy_with(username=None, password=None, fragment=None)


def path_of(topic: TopicName) -> str:
    """A topic's path below /admin/v2."""
    return f"/{topic.domain}/{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"
