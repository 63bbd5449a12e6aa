"""Opening of a connection to a broker: dial, send CONNECT with credentials, and explain refusals."""

import asyncio
import ssl

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RemoteProtocolError, ServerRefused, Unreachable
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Link
from mqbridge.net.dial import dial, refusal_failure
from mqbridge.net.tls.explain import explain_tls, is_permanent
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection.connection import HANDSHAKE_TIMEOUT_S, KEEP_ALIVE_S, Connection


async def open_connection(
    host: str,
    port: int,
    *,
    proxy_to: str | None = None,
    tls: Tls | None = None,
    auth: Auth = NO_AUTH,
    fresh: bool = False,
    keep_alive_s: float = KEEP_ALIVE_S,
    timeout: float = HANDSHAKE_TIMEOUT_S,
    link: Link | None = None,
    addresses: AddressMap = DIRECT,
) -> Connection:
    """Dial and complete the handshake; each of the two steps may take `timeout` seconds.

    If the address is a proxy, `proxy_to` is the `host:port` of the broker behind it. If `fresh` is True, the credentials are read
    from their source again, because the last ones were refused. `keep_alive_s` is the interval between pings. `link`
    reports the connection's state to the cluster's `Connectivity`. `addresses` says where the address can be reached.

    Raises ClusterError: FATAL if the server is no Pulsar broker. Refused credentials raise ServerRefused (FATAL) if the cluster
    has never accepted this client, and Unreachable otherwise.
    """
    connection = Connection(auth, keep_alive_s, link)
    credentials = await auth.credentials(fresh=fresh)
    await dial(host, port, lambda: connection.endpoint, tls=tls, timeout=timeout, link=link, addresses=addresses)
    endpoint = connection.endpoint
    # Until the handshake is complete, received bytes must not report the broker as reachable: they may be its refusal.
    endpoint.link = None
    try:
        await connection.handshake(credentials, proxy_to, timeout)
    except RemoteProtocolError as error:
        raise ClusterError(f"{host}:{port} is not a Pulsar broker: {error}", Failure.FATAL) from error
    except ServerRefused:  # the broker has responded, so this is no failed connection
        raise
    except ClusterError as error:
        # `refusal_failure`: FATAL if the cluster has never accepted our credentials, else RETRY
        explained = error if tls is None else _explain_tls_error(error, f"{host}:{port}", tls.settings, refusal_failure(link))
        if link is not None and explained.failure is not Failure.FATAL:  # nobody retries after FATAL, so it is no outage
            link.record_failure(explained)
        if explained is error:
            raise
        raise explained from error
    except asyncio.CancelledError:
        endpoint.abort(ConnectionLost("the connection is no longer needed"), intended=True)
        raise
    if link is not None and endpoint.alive:  # a connection lost by now is returned too: its first request fails
        endpoint.link = link
        link.record_received()
        link.record_credentials_accepted()
    return connection


def _explain_tls_error(error: ClusterError, address: str, settings: TlsSettings, failure: Failure) -> ClusterError:
    """Return an error that explains a TLS failure; return other errors unchanged.

    The error has `failure` if the TLS failure is permanent, and RETRY if it is temporary. With TLS 1.3 a server refuses our
    certificate only with its first response, after the dial has succeeded.
    """
    cause = error.__cause__
    if not isinstance(cause, ssl.SSLError):
        return error
    why = explain_tls(cause, settings, address)
    return Unreachable(f"{address} cannot be reached by TLS: {why}", failure if is_permanent(cause) else Failure.RETRY)
