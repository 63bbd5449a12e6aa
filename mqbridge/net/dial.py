"""Opens connections with a timeout; errors name the address.

A host name with several addresses is reached if one of them works, see `race`. The TLS handshake belongs to the attempt: an
address that accepts a connection and does not answer is passed over.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import cast

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RemoteProtocolError, RequestTimeout, Unreachable
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Link
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.race import race, resolve
from mqbridge.net.tls.explain import explain_tls, is_permanent
from mqbridge.net.tls.tls import Tls

CONNECT_TIMEOUT_S = 5.0
"""Maximum time of the DNS lookup, the TCP connection and the TLS handshake together, for all addresses of the name.

A healthy server needs milliseconds."""
_TLS_ERRORS = (ssl.SSLError, ConnectionResetError, BrokenPipeError)
"""Errors of a TLS handshake; some servers reject a certificate by closing the connection."""


async def dial(
    host: str,
    port: int,
    make_endpoint: Callable[[], Endpoint],
    *,
    tls: Tls | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
    link: Link | None = None,
    addresses: AddressMap = DIRECT,
) -> Endpoint:
    """Connect within `timeout` seconds, by TLS unless `tls` is None; return the endpoint that `make_endpoint` made.

    `host` and `port` are the address by which the cluster knows the server, and `host` is the name in its certificate; the
    connection goes to where `addresses` says that it can be reached.

    The endpoint reports its state to `link`; a failure to connect is reported there too. None: nothing is reported.
    Raises Unreachable, and ClusterError (FATAL) if the files that `tls` needs are unusable. Unreachable is FATAL if TLS fails
    so that a retry cannot help, and the cluster has never accepted our credentials (see `refusal_failure`).
    """
    try:
        return await _connect(host, port, make_endpoint, tls, timeout, link, addresses)
    except Unreachable as error:
        if link is not None and error.failure is not Failure.FATAL:  # a FATAL failure is not retried, so it is no outage
            link.record_failure(error)
        raise


async def _connect(
    host: str,
    port: int,
    make_endpoint: Callable[[], Endpoint],
    tls: Tls | None,
    timeout: float,
    link: Link | None,
    addresses: AddressMap,
) -> Endpoint:
    context = None if tls is None else await tls.context()
    certificate_name = None if tls is None else tls.server_name(host)
    loop = asyncio.get_running_loop()
    reachable_host, reachable_port = addresses.reachable(host, port)
    name = addresses.describe(host, port)
    claim = _Claim(make_endpoint, tls, link)

    async def connect(ip: str) -> None:
        transport, _ = await loop.create_connection(
            lambda: _Attempt(claim, ip), ip, reachable_port, ssl=context, server_hostname=certificate_name
        )
        if claim.ip != ip:
            raise ConnectionAbortedError("another address was faster")
        if tls is not None:
            tls.record_server_certificate(f"{host}:{port}", transport)

    ips: list[str] = []
    failed: dict[str, OSError] = {}
    try:
        async with asyncio.timeout(timeout):
            ips = await resolve(reachable_host, reachable_port)
            if link is not None and len(ips) > 1:
                ips = link.sort_addresses(ips)
                claim.reports_ip = True
            with claim.closed_on_error():
                is_connected = await race(ips, connect, timeout, failed)
    except TimeoutError as error:
        raise Unreachable(f"{_timeout_text(name, tls, timeout, ips, failed)}{addresses.hint(host, port)}") from error
    except UnicodeError as error:  # raised before the DNS lookup: a label of the name is empty or too long
        raise Unreachable(f"{name} cannot be reached: the host name is invalid: {error}") from error
    except OSError as error:  # of the DNS lookup
        raise Unreachable(f"{name} cannot be reached: {error.strerror or error}{addresses.hint(host, port)}") from error
    if not is_connected or claim.endpoint is None:
        raise _failure_error(host, name, tls, failed, refusal_failure(link), addresses.hint(host, port))
    return claim.endpoint


def _timeout_text(name: str, tls: Tls | None, timeout: float, ips: list[str], failed: dict[str, OSError]) -> str:
    """Return the error text if the time is over; `name` is the address as errors show it."""
    if not ips:
        return f"{name} cannot be reached: the name was not resolved within {timeout:g} s"
    with_tls = "" if tls is None else " by TLS"
    hint = "" if tls is None else ": is this its port for TLS?"
    if len(ips) > 1:
        states = (f"{ip}: {failed[ip].strerror or failed[ip]}" if ip in failed else f"{ip}: no answer" for ip in ips)
        hint = f" ({'; '.join(states)}){hint}"
    return f"{name} did not accept a connection{with_tls} within {timeout:g} s{hint}"


def _failure_error(
    host: str, name: str, tls: Tls | None, failed: dict[str, OSError], if_permanent: Failure, hint: str
) -> Unreachable:
    """Return the error if every IP address failed; with `if_permanent` if a retry helps at none of them."""
    tls_errors = [] if tls is None else [error for error in failed.values() if isinstance(error, _TLS_ERRORS)]
    reasons = {
        ip: explain_tls(error, tls.settings, tls.server_name(host))
        if tls is not None and error in tls_errors
        else str(error.strerror or error)
        for ip, error in failed.items()
    }
    reason = "; ".join(f"{ip}: {why}" for ip, why in reasons.items()) if len(reasons) > 1 else next(iter(reasons.values()))
    by_tls = " by TLS" if tls_errors else ""
    failure = if_permanent if tls_errors and all(map(is_permanent, failed.values())) else Failure.RETRY
    error = Unreachable(f"{name} cannot be reached{by_tls}: {reason}{'' if tls_errors else hint}", failure)
    error.__cause__ = next(iter(tls_errors or failed.values()))
    return error


class _Claim:
    """The endpoint of the first attempt that succeeds."""

    def __init__(self, make_endpoint: Callable[[], Endpoint], tls: Tls | None, link: Link | None) -> None:
        self._make_endpoint, self._tls, self._link = make_endpoint, tls, link
        self.endpoint: Endpoint | None = None
        self.ip: str | None = None
        """The address of the attempt that succeeded first; None before."""
        self.reports_ip = False
        """True if the host name has several addresses, so that it matters which of them served."""

    def take(self, ip: str) -> Endpoint | None:
        """Return the endpoint for a connection to this address; None if another address was faster."""
        if self.ip is not None:
            return None
        self.ip = ip
        self.endpoint = endpoint = self._make_endpoint()
        endpoint.link, endpoint.tls = self._link, self._tls
        if self._link is not None and self.reports_ip:
            self._link.ip = ip
        return endpoint

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the connection of the endpoint if the block fails: nobody gets the endpoint, so nobody else would.

        An attempt may succeed just before its caller is cancelled, or the time is over.
        """
        try:
            yield
        except BaseException:
            if self.endpoint is not None:
                self.endpoint.abort(ConnectionLost("the connection is not needed any more"), intended=True)
            raise


class _Attempt(asyncio.Protocol):
    """Becomes the endpoint when it is connected, unless another address was faster: an endpoint has only one connection."""

    def __init__(self, claim: _Claim, ip: str) -> None:
        self._claim, self._ip = claim, ip

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection to the endpoint, or close it."""
        endpoint, connection = self._claim.take(self._ip), cast(asyncio.Transport, transport)
        if endpoint is None:
            connection.abort()
            return
        connection.set_protocol(endpoint)
        endpoint.connection_made(connection)


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
