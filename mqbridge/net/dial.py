"""Opens connections with a timeout; errors name the address."""

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
    """Split `host:port`, `host` or `[IPv6]:port` into host and port.

    Raises ValueError if the host is empty, the port is not a number from 1 to 65535, or the address contains a user.
    """
    host, _, port = address.rpartition(":") if ":" in address.rsplit("]", 1)[-1] else (address, "", "")
    if "@" in address:  # not shown: it may be a password
        raise ValueError("an address must not contain a user or a password: give credentials as `auth`")
    number = default_port if not port else int(port) if port.isdecimal() else 0
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
    """Connect and return the endpoint that `make` built; the connection's state is reported to `link`.

    Raises Unreachable (FATAL if TLS fails at a cluster that has never accepted our credentials), and ClusterError (FATAL) if the
    files that `tls` needs are unusable.
    """
    try:
        return await _connect(host, port, make, tls, timeout, link)
    except Unreachable as error:
        if link is not None and error.failure is not Failure.FATAL:  # a FATAL failure is not retried: not an outage
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
    except UnicodeError as error:  # raised before the DNS lookup: a label of the name is empty or too long
        raise Unreachable(f"{host}:{port} cannot be reached: the host name is invalid: {error}") from error
    except OSError as error:
        if tls is not None and isinstance(error, (ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            why = explain_tls(error, tls.settings, name or host)
            failure = refusal_failure(link) if is_final(error) else Failure.RETRY
            raise Unreachable(f"{host}:{port} cannot be reached by TLS: {why}", failure) from error
        raise Unreachable(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
    if tls is not None:
        tls.record_server_certificate(f"{host}:{port}", transport)
    return endpoint


def refusal_failure(link: Link | None) -> Failure:
    """Return FATAL if the cluster has never accepted our credentials; else RETRY, as a new certificate or token may help."""
    return Failure.RETRY if link is not None and link.admitted else Failure.FATAL


@contextlib.contextmanager
def speaking(protocol: str, addresses: str, *more: type[ClusterError]) -> Iterator[None]:
    """Wrap the first exchange with a cluster: an unexpected response may mean that the port belongs to another kind of server.

    Replaces ConnectionLost, RequestTimeout, RemoteProtocolError and the `more` errors by Unreachable with that hint. A fatal
    refusal is raised unchanged, unless a RemoteProtocolError caused it.
    """
    try:
        yield
    except (ClusterError, RemoteProtocolError) as error:
        is_unexpected = isinstance(error, (ConnectionLost, RequestTimeout, RemoteProtocolError, *more))
        is_refusal = isinstance(error, (ConnectionLost, Unreachable)) and error.failure is Failure.FATAL
        if (is_refusal or not is_unexpected) and not isinstance(error.__cause__, RemoteProtocolError):
            raise
        raise Unreachable(
            f"{addresses} can be reached, but does not answer as {protocol} does: {error}. "
            "Is it the port of another system, of a web interface, or one for TLS?",
            error.failure if isinstance(error, ClusterError) else Failure.RETRY,
        ) from error
