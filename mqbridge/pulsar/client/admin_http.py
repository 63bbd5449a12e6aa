"""HTTP calls of the admin interface, with errors that say what helps, and followed to the broker that answers them.

A broker that does not own a topic answers with a redirect to the web address of the one that does, and while a topic changes
hands that one may send the call on. A call is repeated there with its method and its body. Its credentials (those of `admin_url`,
as in `http://user:password@host`) go along only to hosts that the cluster lists as its brokers, and never from https to http:
whoever can redirect a call cannot have them sent elsewhere. One deadline holds for all the steps of a call.
"""

import asyncio
from typing import Any
from urllib.parse import quote

import httpx

from mqbridge.errors import ClusterError, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.pulsar.wire.names import TopicName

MISSING = 404
EXISTS = 409
REDIRECTS = frozenset({302, 307, 308})
"""All of them mean the same call at another address. Pulsar's is 307; the others come from what stands before brokers."""
MAX_REDIRECTS = 20
"""As for lookups: brokers that do not agree on an owner would send a call round for ever."""
_FAILURES = {401: Failure.FATAL, 403: Failure.FATAL, MISSING: Failure.FATAL, 405: Failure.FATAL, EXISTS: Failure.REFUSED}
_FAILURES |= {412: Failure.FATAL, 400: Failure.FATAL}
"""Every other status may pass."""
GUESSED = (
    ". This address of the REST interface is a guess, made from the service URL: give the right one with ?admin=http://HOST:PORT"
)


class AdminHttp:
    """Connections to one web service, and to the brokers that it sends calls on to."""

    def __init__(
        self, url: str, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None, *, is_guess: bool = False
    ) -> None:
        """With a `transport` the calls go through it instead of sockets."""
        base = httpx.URL(f"{url}/admin/v2/")
        self._base = base.copy_with(username=None, password=None)
        self._auth = httpx.BasicAuth(base.username, base.password) if base.username or base.password else None
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(timeout=timeout_s, transport=transport)
        self._brokers: frozenset[str] = frozenset()
        """Hosts that the cluster listed the last time it was asked."""
        self._advice = GUESSED if is_guess else ""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call; the parsed answer, None when it is empty. Raises ClusterError."""
        answer = await self._answer(method, path, body)
        if answer.status_code >= 300:
            failure = _FAILURES.get(answer.status_code, Failure.RETRY)
            said = f"{method} {path}: HTTP {answer.status_code}: {answer.text[:300]}"
            if "json" not in answer.headers.get("content-type", ""):  # Pulsar refuses in JSON
                said += self._advice
            raise ServerRefused(said, answer.status_code, failure)
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise self.something_else(method, path) from error

    def something_else(self, method: str, path: str) -> ClusterError:
        """The answer is none of Pulsar's."""
        problem = f"{_origin(self._base)} answered {method} {path} as Pulsar's REST interface does not{self._advice}"
        return ClusterError(problem, Failure.FATAL)

    async def _answer(self, method: str, path: str, body: Any) -> httpx.Response:
        """What the broker that serves this call answers."""
        url = httpx.URL(f"{self._base}{path.removeprefix('/')}")
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    answer = await self._ask(method, url, body)
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
            raise Unreachable(f"{_origin(url)} cannot be reached: {error}{self._advice}") from error
        raise ClusterError(f"{method} {path}: more than {MAX_REDIRECTS} redirects, the brokers do not agree on who answers")

    async def _ask(self, method: str, url: httpx.URL, body: Any) -> httpx.Response:
        auth = self._auth if self._auth is not None and await self._is_trusted(url) else None
        return await self._http.request(method, url, json=body, auth=auth)

    async def _is_trusted(self, url: httpx.URL) -> bool:
        """Whether credentials may go there: to where the configuration points, or to a broker of the cluster."""
        if _origin(url) == _origin(self._base):
            return True
        if self._base.scheme == "https" and url.scheme != "https":
            return False
        if url.host not in self._brokers:
            self._brokers = _hosts(await self._http.get(self._base.join("brokers"), auth=self._auth))
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
