"""Opening connections, with a deadline and an error that names the address."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RemoteProtocolError, RequestTimeout, Unreachable
from mqbridge.net.connectivity import Link
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.tls.explained import explain_tls, is_final
from mqbridge.net.tls.tls import Tls

CONNECT_TIMEOUT_S = 5.0


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """`host:port`, `host` or `[v6]:port`. Raises ValueError when the port is not a number from 1 to 65535."""
    host, _, port = address.rpartition(":") if ":" in address.rsplit("]", 1)[-1] else (address, "", "")
    if "@" in address:  # not shown: it may be a password
        raise ValueError("an address holds no user and no password: give credentials as `auth`")
    number = int(port) if port else default_port
    if not host or not 0 < number < 65536:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), number


async def dial(
    host: str,
    port: int,
    make: Callable[[], Endpoint],
    *,
    tls: Tls | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
    link: Link | None = None,
) -> Endpoint:
    """Connect and return the endpoint that `make` built; `link` is told how it fares.

    Raises Unreachable, which is FATAL where TLS fails at a cluster that never let us in, and ClusterError (FATAL) when the files
    that `tls` needs cannot be used.
    """
    try:
        return await _connect(host, port, make, tls, timeout, link)
    except Unreachable as error:
        if link is not None and error.failure is not Failure.FATAL:  # nobody tries again by himself what a person has to mend
            link.failed(error)
        raise


async def _connect(
    host: str, port: int, make: Callable[[], Endpoint], tls: Tls | None, timeout: float, link: Link | None
) -> Endpoint:
    def linked() -> Endpoint:
        endpoint = make()
        endpoint.link = link
        endpoint.tls = tls
        return endpoint

    context = None if tls is None else await tls.context()
    name = None if tls is None else tls.server_name(host)
    try:
        async with asyncio.timeout(timeout):
            transport, endpoint = await asyncio.get_running_loop().create_connection(
                linked, host, port, ssl=context, server_hostname=name
            )
    except TimeoutError as error:
        by_tls = "" if tls is None else " by TLS"
        hint = "" if tls is None else ": is this its port for TLS?"
        raise Unreachable(f"{host}:{port} did not accept a connection{by_tls} within {timeout:g} s{hint}") from error
    except UnicodeError as error:  # before it is looked up: an empty part between two dots, or one that is too long
        raise Unreachable(f"{host}:{port} cannot be reached: the name is none: {error}") from error
    except OSError as error:
        if tls is not None and isinstance(error, (ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            why = explain_tls(error, tls.settings, name or host)
            failure = lasting(link) if is_final(error) else Failure.RETRY
            raise Unreachable(f"{host}:{port} cannot be reached by TLS: {why}", failure) from error
        raise Unreachable(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
    if tls is not None:
        tls.met(f"{host}:{port}", transport)
    return endpoint


def lasting(link: Link | None) -> Failure:
    """FATAL for a refusal by a cluster that never let us in; later it may be mended without us, by a new certificate or token."""
    return Failure.RETRY if link is not None and link.admitted else Failure.FATAL


@contextlib.contextmanager
def speaking(protocol: str, addresses: str, *more: type[ClusterError]) -> Iterator[None]:
    """Around the first words with a cluster: a peer that is there and does not answer as it should is perhaps something else.

    Raises Unreachable, which says so, in place of ConnectionLost, RequestTimeout, RemoteProtocolError, and what else is named.
    """
    try:
        yield
    except (ClusterError, RemoteProtocolError) as error:
        spoken = isinstance(error, (ConnectionLost, RequestTimeout, RemoteProtocolError, *more))
        is_refusal = isinstance(error, (ConnectionLost, Unreachable)) and error.failure is Failure.FATAL
        if (is_refusal or not spoken) and not isinstance(error.__cause__, RemoteProtocolError):
            raise
        raise Unreachable(
            f"{addresses} can be reached, but does not answer as {protocol} does: {error}. "
            "Is it the port of another system, of a web interface, or one for TLS?",
            error.failure if isinstance(error, ClusterError) else Failure.RETRY,
        ) from error
