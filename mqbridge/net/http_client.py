"""HTTP connections to web services, whose responses are bounded.

A response has at most MAX_BODY_BYTES and is not compressed: a few KB could unpack to gigabytes.

A new httpx client replaces the old one when the TLS files change. The old client is closed when its running calls have ended.

Nothing comes from the environment, neither a proxy (HTTP_PROXY, ALL_PROXY, NO_PROXY) nor credentials (`.netrc`). A proxy is used
only if the cluster names one.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import httpcore
import httpx
import orjson

from mqbridge.errors import ClusterError
from mqbridge.net.addresses import DIRECT, AddressMap, HostPort
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tls.explain import explain_tls
from mqbridge.net.tls.tls import Tls

_TLS_ERRORS = (ssl.SSLError, ConnectionResetError, BrokenPipeError)
"""Exceptions that a failed TLS handshake may raise; some servers reject a certificate by closing the connection."""

PROXY_CREDENTIALS_NEEDED = 407
"""HTTP status that only a proxy sends."""
_PROXY_FAILURES = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
"""Errors that are the proxy's own if there is one: all connections go to it."""

MAX_BODY_BYTES = 64 << 20
"""Limit of a response. The statistics of a topic with 10,000 partitions have about 30 MB; JSON takes up to 25 times its size."""

_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=5.0)
"""Limits of the connections of one client; further calls wait for one of them. httpx has these values by default, but its
transport below, where the reachable addresses are put in, has others."""

P = ParamSpec("P")
T = TypeVar("T")


def parse_json(response: httpx.Response) -> Any:
    """Return the JSON of a response. Raises ValueError, also for deep nesting."""
    return orjson.loads(response.content)


def reads_json(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a coroutine function that uses members of parsed responses: a wrong one raises ClusterError (RETRY).

    A member that is missing or has another type raises one of Python's own errors, which callers do not expect.
    """

    @wraps(method)
    async def read(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, httpx.InvalidURL) as error:
            name = method.__name__.strip("_").replace("_", " ")
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ClusterError(f"a response of the admin interface has not the expected form ({name}; {reason})") from error

    return read


def _address_of(url: httpx.URL) -> tuple[str, int]:
    return url.host, url.port or (443 if url.scheme == "https" else 80)


def origin_of(url: httpx.URL) -> str:
    """Return `scheme://host[:port]`, without credentials."""
    return f"{url.scheme}://{url.netloc.decode()}"


class HttpConnections:
    """HTTP connections to the web services of one cluster.

    `tls` None: HTTPS trusts the authorities of the platform. `proxy` is the address of a forward proxy for all of them, see
    `proxy_url`; None: no proxy. `addresses` says where the servers can be reached; a proxy gets the advertised addresses,
    since it makes the connections itself. Tests give a `transport`, which replaces sockets.
    """

    def __init__(
        self,
        timeout: httpx.Timeout,
        tls: Tls | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        proxy: str | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        self._home = HomeLoop("the client of the administration interface")
        self._transport, self._addresses = transport, DIRECT if proxy is not None else addresses
        self._settings: dict[str, Any] = {
            "timeout": timeout,
            "limits": _LIMITS,
            "trust_env": False,
            "proxy": proxy,
            "headers": {"accept-encoding": "identity"},
        }
        self._tls = tls or Tls()
        self._proxy = None if proxy is None else origin_of(httpx.URL(proxy))
        """The proxy's address without credentials, for errors."""
        self._current: _Client | None = None
        """The client for new calls; None before the first call."""
        self._context: ssl.SSLContext | None = None
        """The TLS context of `_current`; None until the first call by HTTPS."""

    async def request(self, method: str, url: httpx.URL, **arguments: Any) -> httpx.Response:
        """Make one request, without following redirects; `arguments` are those of httpx: headers, auth, json, data.

        Raises httpx's errors, and ClusterError if the TLS files are unusable. A response that is compressed or larger than
        MAX_BODY_BYTES is a DecodingError. A proxy that demands credentials is a ProxyError, by HTTP and by HTTPS.
        """
        self._home.check()
        extensions = {}
        if self._tls.settings.server_name:
            extensions["sni_hostname"] = self._tls.settings.server_name
        async with (
            self._borrow_client(url.scheme) as client,
            client.stream(method, url, extensions=extensions, **arguments) as streamed,
        ):
            response = await _read_bounded(streamed)
        if self._proxy is not None and response.status_code == PROXY_CREDENTIALS_NEEDED:
            raise httpx.ProxyError(f"{PROXY_CREDENTIALS_NEEDED} {response.reason_phrase}", request=response.request)
        # Record the expiry of the server's certificate; without a connection's stream (as in tests) there is none.
        if url.scheme == "https" and (stream := response.extensions.get("network_stream")) is not None:
            self._tls.record_server_certificate(f"{url.host}:{url.port or 443}", _StreamInfo(stream))
        return response

    @asynccontextmanager
    async def _borrow_client(self, scheme: str) -> AsyncIterator[httpx.AsyncClient]:
        """Provide a client with the current TLS context for one call."""
        # Without HTTPS the context is not used, so changed TLS files need no new client.
        context = self._context if scheme != "https" else await self._tls.context()
        client, old_client = self._current, None
        if client is None or context is not self._context:
            old_client, self._context = client, context
            client = self._current = _Client(self._make_client(context))
        client.running_calls += 1  # before the next await: a newer client may replace this one meanwhile
        try:
            if old_client is not None:
                await old_client.retire()
            yield client.http
        finally:
            client.running_calls -= 1
            await client.close_if_unused()

    def name(self, url: httpx.URL) -> str:
        """Return the origin of a URL, and the proxy or the reachable address if there is one, for errors."""
        if self._addresses and (reachable := self._addresses.reachable(*(address := _address_of(url)))) != address:
            return f"{origin_of(url)} (at {HostPort(*reachable)})"
        return f"{origin_of(url)}{self.proxy_note}"

    def _make_client(self, context: ssl.SSLContext | None) -> httpx.AsyncClient:
        transport, verify = self._transport, True if context is None else context
        if transport is None and self._addresses:
            transport = _MappedTransport(self._addresses, verify)
        return httpx.AsyncClient(verify=verify, transport=transport, **self._settings)

    @property
    def proxy_note(self) -> str:
        """Text that names the proxy after the name of a call; empty without one. An error status may be the proxy's own."""
        return "" if self._proxy is None else f" (through the proxy {self._proxy})"

    def explain_timeout(self, error: Exception, url: httpx.URL) -> str:
        """Return the beginning of the error for a call without a response: who did not answer."""
        if self._proxy is not None and isinstance(error, httpx.ConnectTimeout):
            return f"the proxy {self._proxy} for {origin_of(url)} accepted no connection for"
        return f"{self.name(url)} did not answer"

    def explain_connecting(self, error: Exception, url: httpx.URL) -> str:
        """Say which server failed, and why: the proxy if it is not reached or refuses, else the one of the URL."""
        if (why := self.explain_tls(error, url)) is not None:
            return f"{self.name(url)} cannot be reached by TLS: {why}"
        reason = str(error) or type(error).__name__
        if self._proxy is None or not isinstance(error, _PROXY_FAILURES):
            hint = self._addresses.hint(*_address_of(url)) if isinstance(error, _PROXY_FAILURES) else ""
            return f"{self.name(url)} cannot be reached: {reason}{hint}"
        proxy = f"the proxy {self._proxy} for {origin_of(url)}"
        if not isinstance(error, httpx.ProxyError):
            return f"{proxy} cannot be reached: {reason}"
        if reason.startswith(str(PROXY_CREDENTIALS_NEEDED)):
            return f"{proxy} refuses its credentials ({reason}): give them as `admin_proxy: http://user:password@host:port`"
        return f"{proxy} refused to connect: {reason}"

    def explain_tls(self, error: Exception, url: httpx.URL) -> str | None:
        """Explain a TLS failure of a call to this URL and name the option to change; return None for other failures."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _TLS_ERRORS):
            cause = cause.__cause__ or cause.__context__
        if url.scheme != "https" or not isinstance(cause, Exception):
            return None
        if self._proxy is not None and not isinstance(cause, ssl.SSLError):
            return None  # the proxy has closed the connection
        return explain_tls(cause, self._tls.settings, self._tls.server_name(url.host))

    async def close(self) -> None:
        """Close the current client; replaced clients close when their running calls have ended."""
        if self._current is not None:
            await self._current.http.aclose()
            self._current = None


async def _read_bounded(streamed: httpx.Response) -> httpx.Response:
    """Return a response with its body. Raises DecodingError if that is compressed or too large."""
    if (encoding := streamed.headers.get("content-encoding", "identity")).lower() != "identity":
        raise httpx.DecodingError(
            f"the response is compressed ({encoding[:40]}), which was not asked for", request=streamed.request
        )
    if streamed.is_stream_consumed:  # a transport of tests has the body already
        return streamed
    body = bytearray()
    async for chunk in streamed.aiter_raw():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise httpx.DecodingError(f"the response is larger than {MAX_BODY_BYTES} bytes", request=streamed.request)
    return httpx.Response(
        streamed.status_code,
        headers=streamed.headers,
        content=bytes(body),
        request=streamed.request,
        extensions=streamed.extensions,
    )


class _MappedTransport(httpx.AsyncHTTPTransport):
    """Connects to where advertised addresses can be reached; requests and certificates keep the advertised host."""

    def __init__(self, addresses: AddressMap, verify: ssl.SSLContext | bool) -> None:
        super().__init__(verify=verify, trust_env=False)
        context = verify if isinstance(verify, ssl.SSLContext) else httpx.create_ssl_context(trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=_LIMITS.max_connections,
            max_keepalive_connections=_LIMITS.max_keepalive_connections,
            keepalive_expiry=_LIMITS.keepalive_expiry,
            network_backend=_MappedNetwork(addresses),
        )


class _MappedNetwork(httpcore.AnyIOBackend):
    def __init__(self, addresses: AddressMap) -> None:
        self._addresses = addresses

    async def connect_tcp(self, host: str, port: int, *arguments: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        """Connect to the reachable address; like every backend, it tries all IP addresses of the name."""
        return await super().connect_tcp(*self._addresses.reachable(host, port), *arguments, **options)


class _Client:
    """An httpx client with the number of its running calls."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.running_calls = 0
        self._retired = False

    async def retire(self) -> None:
        """Mark this client as replaced by a newer one, and close it if no call is running."""
        self._retired = True
        await self.close_if_unused()

    async def close_if_unused(self) -> None:
        """Close this client if it was replaced and no call is running."""
        if self._retired and not self.running_calls:
            await self.http.aclose()


class _StreamInfo:
    """Adapts a connection of httpx to the interface that `Tls` needs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the value of this name, like `asyncio.BaseTransport.get_extra_info`; `Tls` asks for `ssl_object`."""
        return self._stream.get_extra_info(name) or default
