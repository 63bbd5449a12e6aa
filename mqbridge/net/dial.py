"""Opening connections, with a deadline and an error that names the address."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RemoteProtocolError, RequestTimeout, Unreachable
from mqbridge.net.connectivity import Link
from mqbridge.net.endpoint import Endpoint

CONNECT_TIMEOUT_S = 5.0


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """`host:port`, `host` or `[v6]:port`. Raises ValueError when the port is not a number from 1 to 65535."""
    host, _, port = address.rpartition(":") if ":" in address.rsplit("]", 1)[-1] else (address, "", "")
    number = int(port) if port else default_port
    if not host or not 0 < number < 65536:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), number


async def dial(
    host: str,
    port: int,
    make: Callable[[], Endpoint],
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
    link: Link | None = None,
) -> Endpoint:
    """Connect and return the endpoint that `make` built; `link` is told how it fares. Raises Unreachable."""
    try:
        return await _connect(host, port, make, tls, timeout, link)
    except Unreachable as error:
        if link is not None:
            link.failed(error)
        raise


async def _connect(
    host: str, port: int, make: Callable[[], Endpoint], tls: ssl.SSLContext | None, timeout: float, link: Link | None
) -> Endpoint:
    def linked() -> Endpoint:
        endpoint = make()
        endpoint.link = link
        return endpoint

    try:
        async with asyncio.timeout(timeout):
            _, endpoint = await asyncio.get_running_loop().create_connection(linked, host, port, ssl=tls)
    except TimeoutError as error:
        raise Unreachable(f"{host}:{port} did not accept a connection within {timeout:g} s") from error
    except UnicodeError as error:  # before it is looked up: an empty part between two dots, or one that is too long
        raise Unreachable(f"{host}:{port} cannot be reached: the name is none: {error}") from error
    except OSError as error:
        raise Unreachable(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
    return endpoint


@contextlib.contextmanager
def speaking(protocol: str, addresses: str, *more: type[ClusterError]) -> Iterator[None]:
    """Around the first words with a cluster: a peer that is there and does not answer as it should is perhaps something else.

    Raises Unreachable, which says so, in place of ConnectionLost, RequestTimeout, RemoteProtocolError, and what else is named.
    """
    try:
        yield
    except (ClusterError, RemoteProtocolError) as error:
        spoken = isinstance(error, (ConnectionLost, RequestTimeout, RemoteProtocolError, *more))
        if not spoken and not isinstance(error.__cause__, RemoteProtocolError):
            raise
        raise Unreachable(
            f"{addresses} can be reached, but does not answer as {protocol} does: {error}. "
            "Is it the port of another system, of a web interface, or one for TLS (which is not supported yet)?",
            error.failure if isinstance(error, ClusterError) else Failure.RETRY,
        ) from error
