"""HTTP to the web interfaces of TubeMQ, by TLS where an address says so, with certificates that follow their files."""

import ssl
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from mqbridge.net.tls.explained import explain_tls
from mqbridge.net.tls.tls import Tls


class AdminHttp:
    """Connections to the web interfaces of one cluster."""

    def __init__(self, timeout_s: float, tls: Tls | None = None) -> None:
        self._timeout_s, self._tls = timeout_s, tls or Tls()
        self._plain = httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=False)  # noqa: S501 - it makes no TLS
        self._encrypted: tuple[ssl.SSLContext, httpx.AsyncClient] | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._plain.aclose()
        if self._encrypted is not None:
            await self._encrypted[1].aclose()

    async def post(self, url: str, form: dict[str, str]) -> httpx.Response:
        """One call. Raises httpx.HTTPError, and ClusterError (FATAL) when the files for TLS cannot be used."""
        parts = urlsplit(url)
        if parts.scheme != "https":
            return await self._plain.post(url, data=form)
        more: dict[str, Any] = {"extensions": {"sni_hostname": self._tls.server_name(parts.hostname or "")}}
        return await (await self._by_tls()).post(url, data=form, **more)

    async def _by_tls(self) -> httpx.AsyncClient:
        """Another one when the files have changed."""
        context = await self._tls.context()
        if self._encrypted is None or self._encrypted[0] is not context:
            if self._encrypted is not None:
                await self._encrypted[1].aclose()
            self._encrypted = context, httpx.AsyncClient(timeout=self._timeout_s, trust_env=False, verify=context)
        return self._encrypted[1]

    def why(self, error: httpx.HTTPError, url: str) -> str:
        """In a sentence, which names the option where TLS failed."""
        inner: BaseException | None = error
        while inner is not None:
            if isinstance(inner, ssl.SSLError):
                return explain_tls(inner, self._tls.settings, self._tls.server_name(urlsplit(url).hostname or ""))
            inner = inner.__cause__ or inner.__context__
        return str(error) or type(error).__name__


def without_user(url: str) -> str:
    """The address without the user and the password that may be in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
