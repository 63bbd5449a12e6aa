"""A web service and a forward proxy on loopback, which record what they are asked."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from mqbridge.net.tasks import cancel, spawn

CHUNK_BYTES = 1 << 16


class WebService:
    """Answers every request with `body`; `requests` are the request lines, `headers` the headers of the last request."""

    def __init__(self, body: bytes = b"[]") -> None:
        self.body = body
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        self.location: str | None = None
        """The address that the next request is redirected to; None: none is redirected."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line, self.headers = await read_head(reader)
            self.requests.append(line)
            await reader.readexactly(int(self.headers.get("content-length", 0)))
            status, more = "200 OK", ""
            if self.location is not None:
                status, more, self.location = "307 Temporary Redirect", f"location: {self.location}\r\n", None
            head = f"HTTP/1.1 {status}\r\n{more}content-type: application/json\r\nconnection: close\r\n"
            writer.write(f"{head}content-length: {len(self.body)}\r\n\r\n".encode() + self.body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class ForwardProxy:
    """Forwards requests for `http://` and tunnels for `https://`; `targets` are those that were asked for."""

    def __init__(self, credentials: str | None = None, status: int | None = None) -> None:
        self._credentials = credentials
        """`user:password` that it demands; None: none."""
        self._status = status
        """The status by which it refuses every request; None: it forwards them."""
        self.targets: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            line, headers = await read_head(reader)
            method, target, _ = line.split(" ", 2)
            self.targets.append(target)
            if (status := self._refusal(headers)) is not None:
                writer.write(f"HTTP/1.1 {status} Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
                await writer.drain()
                return
            url = urlsplit(f"//{target}" if method == "CONNECT" else target)
            up_reader, upstream = await asyncio.open_connection(url.hostname, url.port)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if not name.startswith("proxy-"))
                upstream.write(f"{method} {url.path or '/'} HTTP/1.1\r\n{fields}\r\n".encode())
            backward = spawn(_pass(up_reader, writer), "proxy backward")
            forward = spawn(_pass(reader, upstream), "proxy forward")
            await backward
            await cancel(forward)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            if upstream is not None:
                upstream.close()

    def _refusal(self, headers: dict[str, str]) -> int | None:
        if self._credentials is not None:
            expected = f"Basic {base64.b64encode(self._credentials.encode()).decode()}"
            return None if headers.get("proxy-authorization") == expected else 407
        return self._status


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Return the first line of a request and its headers, with names in lower case."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    fields = (line.partition(":") for line in lines if line)
    return first, {name.lower(): value.strip() for name, _, value in fields}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof() if writer.can_write_eof() else writer.close()


@asynccontextmanager
async def listening(
    server: WebService | ForwardProxy, host: str = "127.0.0.1", port: int = 0, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Run a server and yield its port."""
    listener = await asyncio.start_server(server.serve, host, port, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await listener.wait_closed()
