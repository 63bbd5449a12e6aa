"""HTTP connections to web services: httpx's client, made anew when the files of TLS have changed.

The client before is closed when the last of its calls has ended.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from mqbridge.net.tls.explained import explain_tls
from mqbridge.net.tls.tls import Tls

_TLS_ERRORS = (ssl.SSLError, ConnectionResetError, BrokenPipeError)


class HttpConnections:
    """To the web services of one cluster. With a `transport` calls go through it instead of sockets.

    The proxy that the environment names is used where `trust_env` says so.
    """

    def __init__(
        self,
        timeout: httpx.Timeout,
        tls: Tls | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        trust_env: bool = True,
    ) -> None:
        self._settings: dict[str, Any] = {"timeout": timeout, "transport": transport, "trust_env": trust_env}
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._current: _Client | None = None

    async def request(self, method: str, url: httpx.URL, **more: Any) -> httpx.Response:
        """One request, without following redirects; `more` is what httpx takes: headers, auth, json, data.

        Raises httpx's errors, and ClusterError where TLS cannot be set up.
        """
        extensions = {}
        if self._tls is not None and self._tls.settings.server_name:
            extensions["sni_hostname"] = self._tls.settings.server_name
        async with self._client(url.scheme) as client:
            answer = await client.request(method, url, extensions=extensions, **more)
        if self._tls is not None and (stream := answer.extensions.get("network_stream")) is not None:
            self._tls.met(f"{url.host}:{url.port or 443}", _Stream(stream))
        return answer

    @asynccontextmanager
    async def _client(self, scheme: str) -> AsyncIterator[httpx.AsyncClient]:
        context = self._context if self._tls is None or scheme != "https" else await self._tls.context()
        client = self._current
        if client is None or context is not self._context:
            before, self._context = client, context
            client = self._current = _Client(httpx.AsyncClient(verify=True if context is None else context, **self._settings))
            if before is not None:
                await before.retire()
        client.calls += 1
        try:
            yield client.http
        finally:
            client.calls -= 1
            await client.close_if_unused()

    def explain(self, error: httpx.HTTPError, host: str) -> str | None:
        """What went wrong with TLS, and the option that mends it; None where something else went wrong."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _TLS_ERRORS):
            cause = cause.__cause__ or cause.__context__
        if self._tls is None or not isinstance(cause, Exception):
            return None
        return explain_tls(cause, self._tls.settings, self._tls.server_name(host))

    async def close(self) -> None:
        """Close the connections."""
        if self._current is not None:
            await self._current.http.aclose()
            self._current = None


class _Client:
    """httpx's client and how many calls it has under way."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.calls = 0
        self._retired = False

    async def retire(self) -> None:
        """There is a newer one."""
        self._retired = True
        await self.close_if_unused()

    async def close_if_unused(self) -> None:
        """Close it after its last call."""
        if self._retired and not self.calls:
            await self.http.aclose()


class _Stream:
    """A connection of httpx as `Tls` looks at it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def get_extra_info(self, name: str, default: object = None) -> object:
        """`ssl_object` among others."""
        return self._stream.get_extra_info(name) or default
