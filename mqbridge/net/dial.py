"""Opens connections with a timeout; errors name the address."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RemoteProtocolError, RequestTimeout, Unreachable
from mqbridge.net.connectivity import Link
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.tls.explain import explain_tls, is_permanent
from mqbridge.net.tls.tls import Tls

CONNECT_TIMEOUT_S = 5.0
"""Maximum time of the DNS lookup, the TCP connection and the TLS handshake together; a healthy server needs milliseconds."""


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Split `host:port`, `host` or `[IPv6]:port` into host and port; without a port, it is `default_port`.

    Raises ValueError if the host is empty, the port is not a number from 1 to 65535, or the address contains a user.
    """
    has_port = ":" in address.rsplit("]", 1)[-1]  # the colons of an IPv6 address are inside its brackets
    host, _, port = address.rpartition(":") if has_port else (address, "", "")
    if "@" in address:  # not shown: it may be a password
        raise ValueError("an address must not contain a user or a password: give credentials as `auth`")
    number = default_port if not port else int(port) if port.isdecimal() else 0
    if not host or not 0 < number < 65536:
        raise ValueError(f"{address!r} is not host:port, with a port from 1 to 65535")
    return host.strip("[]"), number


async def dial(
    host: str,
    port: int,
    make_endpoint: Callable[[], Endpoint],
    *,
    tls: Tls | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
    link: Link | None = None,
) -> Endpoint:
    """Connect within `timeout` seconds, by TLS unless `tls` is None; return the endpoint that `make_endpoint` made.

    The endpoint reports its state to `link`; a failure to connect is reported there too. None: nothing is reported.
    Raises Unreachable, and ClusterError (FATAL) if the files that `tls` needs are unusable. Unreachable is FATAL if TLS fails
    so that a retry cannot help, and the cluster has never accepted our credentials (see `refusal_failure`).
    """
    try:
        return await _connect(host, port, make_endpoint, tls, timeout, link)
    except Unreachable as error:
        if link is not None and error.failure is not Failure.FATAL:  # a FATAL failure is not retried, so it is no outage
            link.record_failure(error)
        raise


async def _connect(
    host: str, port: int, make_endpoint: Callable[[], Endpoint], tls: Tls | None, timeout: float, link: Link | None
) -> Endpoint:
    def make_protocol() -> Endpoint:
        endpoint = make_endpoint()
        endpoint.link = link
        endpoint.tls = tls
        return endpoint

    context = None if tls is None else await tls.context()
    certificate_name = None if tls is None else tls.server_name(host)
    try:
        async with asyncio.timeout(timeout):
            transport, endpoint = await asyncio.get_running_loop().create_connection(
                make_protocol, host, port, ssl=context, server_hostname=certificate_name
            )
    except TimeoutError as error:
        with_tls = "" if tls is None else " by TLS"
        hint = "" if tls is None else ": is this its port for TLS?"
        raise Unreachable(f"{host}:{port} did not accept a connection{with_tls} within {timeout:g} s{hint}") from error
    except UnicodeError as error:  # raised before the DNS lookup: a label of the name is empty or too long
        raise Unreachable(f"{host}:{port} cannot be reached: the host name is invalid: {error}") from error
    except OSError as error:
        if tls is not None and isinstance(error, (ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            why = explain_tls(error, tls.settings, certificate_name or host)
            failure = refusal_failure(link) if is_permanent(error) else Failure.RETRY
            raise Unreachable(f"{host}:{port} cannot be reached by TLS: {why}", failure) from error
        raise Unreachable(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
    if tls is not None:
        tls.record_server_certificate(f"{host}:{port}", transport)
    return endpoint


def refusal_failure(link: Link | None) -> Failure:
    """Return which `Failure` to raise if a server rejects our credentials.

    It is FATAL if the cluster has never accepted any credentials, or `link` is None, so that this is unknown; else RETRY, because
    the error may be transient, or a new certificate or token may help.
    """
    return Failure.RETRY if link is not None and link.credentials_accepted else Failure.FATAL


@contextlib.contextmanager
def detect_wrong_port(protocol: str, addresses: str, *more_errors: type[ClusterError]) -> Iterator[None]:
    """Wrap the first requests to a cluster: an unexpected response may mean that the port belongs to another kind of server.

    Replaces ConnectionLost, RequestTimeout, RemoteProtocolError, `more_errors`, and errors that a RemoteProtocolError caused, by
    Unreachable with this hint. Other FATAL errors of the connection (rejected credentials) are raised unchanged. In the error,
    `protocol` is the expected server, such as `a Pulsar broker`, and `addresses` are those of the cluster.
    """
    try:
        yield
    except (ClusterError, RemoteProtocolError) as error:
        is_unexpected = isinstance(error, (ConnectionLost, RequestTimeout, RemoteProtocolError, *more_errors))
        is_rejection = isinstance(error, (ConnectionLost, Unreachable)) and error.failure is Failure.FATAL
        if (is_rejection or not is_unexpected) and not isinstance(error.__cause__, RemoteProtocolError):
            raise
        raise Unreachable(
            f"{addresses} can be reached, but does not answer as {protocol} does: {error}. "
            "Is it the port of another system, of a web interface, or one for TLS?",
            error.failure if isinstance(error, ClusterError) else Failure.RETRY,
        ) from error
