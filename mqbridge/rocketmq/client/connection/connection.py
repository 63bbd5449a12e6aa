"""One connection to a broker or name server, with requests in both directions.

A response has the opaque (number) of its request; responses come in any order.

There is no handshake. Each direction numbers its requests independently: a broker's request may have the opaque of a pending
request of ours. A late response to a request that timed out is dropped.

With credentials every request is signed, as the last step before encoding; see `signed_requests`.
"""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Mapping

from mqbridge.errors import ClusterError, ConnectionLost, PeerSilent, RequestTimeout, Unreachable
from mqbridge.net.addresses import DIRECT, AddressMap, split_address
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial, refusal_failure
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.pending import Pending
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.client.connection.access_errors import access_refused
from mqbridge.rocketmq.client.connection.credentials import Credentials, Keys
from mqbridge.rocketmq.client.connection.signed_requests import SignedRequest, SignedRequests
from mqbridge.rocketmq.wire.access_denials import DENIAL_STATUSES, AccessDenial, parse_denial
from mqbridge.rocketmq.wire.codes import request_name
from mqbridge.rocketmq.wire.command import ONEWAY, RESPONSE, Command, decode_at, encode, encode_without_body, measure

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
"""The Java clients' default."""
REQUEST_TIMEOUT_S = 10.0
"""Timeout of one response. It is longer than the 3 s of the Java clients, because a repeated send may be stored twice."""

PLAIN_REFUSED = "does it take TLS only (tls.server.mode=enforcing)? Then switch on the option `tls`"
"""Added to the error if a server closes a plain connection without a byte."""
TLS_REFUSED = "or does it take no TLS (tls.server.mode=disabled)? Then leave out the option `tls`"
"""Added to the error if a TLS handshake ends without a TLS alert."""
OnRequest = Callable[["Connection", Command], None]
"""Called with each request of the server."""
OnLost = Callable[["Connection", Exception], None]
"""Called once when the connection has ended, with the error that ended it."""


class Connection:
    """A connection made by `open_connection`.

    `on_request` gets the requests of the server; `on_lost` is called once, when the connection has ended, after `close` too.
    """

    def __init__(self, address: str, on_request: OnRequest, on_lost: OnLost, credentials: Credentials | None = None) -> None:
        self.address = address
        self.endpoint = _RemotingEndpoint(self._on_command, self._on_end)
        self._on_request, self._on_lost = on_request, on_lost
        self._signed = None if credentials is None else SignedRequests(credentials, address, self._send, self._reject)
        self._closing = False
        """True after `close` was called."""
        self._opaques = itertools.count()
        self._pending: Pending[int, Command] = Pending(address)
        self._loop = asyncio.get_running_loop()

    @property
    def alive(self) -> bool:
        """True until the connection has ended: requests may be sent."""
        return self.endpoint.alive

    @property
    def local_host(self) -> str:
        """Our IP address on this connection."""
        return self.endpoint.local_host

    # --- sending ----------------------------------------------------------------------------------------------------

    def post(self, code: int, ext: Mapping[str, str], body: bytes, timeout: float) -> "asyncio.Future[Command]":
        """Send a request now; return a future for its response. `timeout` is in seconds.

        The response may have any code, except that the future fails with AccessRefused if the server denies access. It may also
        fail with RequestTimeout or ConnectionLost. Raises ConnectionLost if the connection has ended.
        """
        opaque = _int32(next(self._opaques))
        if (signed := self._signed) is None:
            self.endpoint.send(*_frame(code, opaque, flag=0, ext=ext, body=body))
            return self._pending.add(opaque, request_name(code), timeout)
        signed.send(opaque, SignedRequest(code, ext, body, signed.keys))
        response = self._pending.add(opaque, request_name(code), timeout)
        response.add_done_callback(lambda _: signed.forget(opaque))
        return response

    def _send(self, opaque: int, request: SignedRequest) -> None:
        """Sign and send a request, for the first or the second time."""
        self.endpoint.send(*_frame(request.code, opaque, flag=0, ext=request.ext, body=request.body, keys=request.keys))

    async def request(self, code: int, ext: Mapping[str, str], body: bytes, timeout: float) -> Command:
        """Send a request and wait for its response, as `post` does. Raises RequestTimeout, ConnectionLost or AccessRefused.

        If the request times out and the peer has sent nothing since the request, the connection is closed.
        """
        sent_at = self._loop.time()
        try:
            return await self.post(code, ext, body, timeout)
        except RequestTimeout as error:
            self.close_if_silent(sent_at, error)
            raise

    def close_if_silent(self, since: float, error: Exception) -> None:
        """Close the connection if the peer has sent nothing since `since` (loop time).

        Called after a request timed out with `error`; `since` is when this request was sent.
        """
        if self.alive and self.endpoint.received_at <= since:
            self.endpoint.abort(PeerSilent(f"{self.address} has been silent: {error}"))

    async def wait_for_room(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until the server has read enough of the bytes sent before.

        Raises RequestTimeout; if the server has sent nothing meanwhile, the connection is closed.
        """
        began_at = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                await self.endpoint.wait_for_room()
        except TimeoutError:
            problem = f"{self.address} has not read the requests sent before for {timeout:g} s"
            error = RequestTimeout(f"{problem}: {self.endpoint.queued_bytes} bytes wait")
            self.close_if_silent(began_at, error)
            raise error from None

    def oneway(self, code: int, ext: Mapping[str, str], body: bytes, remark: str | None = None) -> None:
        """Send a request that gets no response. Raises ConnectionLost if the connection has ended."""
        keys = None if self._signed is None else self._signed.keys
        self.endpoint.send(*_frame(code, _int32(next(self._opaques)), ONEWAY, ext, body, remark, keys=keys))

    def answer(self, request: Command, response: Command) -> None:
        """Send the response to a broker's request; dropped if the connection has ended."""
        if self.alive:
            response.opaque, response.flag = request.opaque, RESPONSE
            self.endpoint.reply(encode(response, binary=request.binary))

    # --- receiving ------------------------------------------------------------------------------------------------

    def _on_command(self, command: Command) -> None:
        if not command.is_response:
            self._on_request(self, command)
        # These statuses have other causes, too; `parse_denial` returns None for them.
        elif command.code in DENIAL_STATUSES and (denial := parse_denial(command.code, command.remark)) is not None:
            self._on_denial(command, denial)
        else:
            self._pending.resolve(command.opaque, command)

    def _on_end(self, error: Exception) -> None:
        """Let the pending requests fail and report the end of the connection, if need be with advice about TLS."""
        lost = error if isinstance(error, ClusterError) else ConnectionLost(f"the connection to {self.address}: {error}")
        if isinstance(lost, ConnectionLost) and self._perhaps_wants_tls(lost):
            lost = ConnectionLost(f"{lost}: {PLAIN_REFUSED}", lost.failure)
        if self._signed is not None:
            self._signed.close()
        self._pending.fail_all(lost)
        self._on_lost(self, lost)

    def _perhaps_wants_tls(self, lost: ConnectionLost) -> bool:
        """Return True if the server closed a plain connection without sending a byte, as it does if it takes TLS only.

        False if a server of the cluster has accepted our credentials before, or if we closed the connection ourselves.
        """
        link, we_closed = self.endpoint.link, self._closing or isinstance(lost, PeerSilent)
        accepted_before = link is not None and link.credentials_accepted
        return self.endpoint.tls is None and not (accepted_before or self.endpoint.has_received or we_closed)

    # --- denied access ----------------------------------------------------------------------------------------------

    def record_credentials_accepted(self) -> None:
        """Record that the server accepted a request's signature: a later refusal of our credentials is taken as temporary."""
        if self.endpoint.link is not None:
            self.endpoint.link.record_credentials_accepted()

    def _on_denial(self, response: Command, denial: AccessDenial) -> None:
        """Handle a response that denies access: repeat the request with new credentials if possible, else let it fail.

        Without credentials a missing permission is an ordinary response, whose code the caller checks.
        """
        if self._signed is not None:
            self._signed.on_denial(response.opaque, denial)
        elif denial.of_credentials:
            code = 0  # not used: the error for missing credentials does not name the request
            self._pending.reject(
                response.opaque, access_refused(denial, code, self.address, None, refusal_failure(self.endpoint.link))
            )
        else:
            self._pending.resolve(response.opaque, response)

    def _reject(self, opaque: int, request: SignedRequest, denial: AccessDenial) -> None:
        """Let a signed request fail whose access was denied."""
        if not denial.of_credentials:  # only a permission is missing, so the signature was right
            self.record_credentials_accepted()
        failure, access_key = refusal_failure(self.endpoint.link), request.keys.access_key
        self._pending.reject(opaque, access_refused(denial, request.code, self.address, access_key, failure))

    async def close(self) -> None:
        """Write queued bytes and close; pending requests fail."""
        self._closing = True
        await self.endpoint.close()


class _RemotingEndpoint(Endpoint):
    """Endpoint that decodes frames of RocketMQ's remoting protocol in place, and records our local address."""

    local_host = ""
    """Our IP address on this connection; it becomes a part of the client id."""

    def __init__(self, on_command: Callable[[Command], None], on_lost: Callable[[Exception], None]) -> None:
        super().__init__(measure, _reject_frames, on_lost)
        self._on_command = on_command

    def _process(self, data: bytes) -> None:
        for span in self._cutter.feed_spans(data):
            self._on_command(decode_at(*span))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]


def _reject_frames(_: list[bytes]) -> None:
    raise AssertionError("the endpoint called `on_frames` of a RocketMQ connection, but `_process` handles all frames")


def _frame(
    code: int,
    opaque: int,
    flag: int,
    ext: Mapping[str, str],
    body: bytes,
    remark: str | None = None,
    *,
    keys: Keys | None = None,
) -> tuple[bytes, ...]:
    """Return the parts of a frame, signed if there are `keys`. The body is not copied; signing adds fields to a copy of `ext`.

    `flag`: 0 for a request, ONEWAY for one that gets no response.
    """
    fields = ext if isinstance(ext, dict) and keys is None else dict(ext)
    command = Command(code, fields, body, opaque=opaque, flag=flag, remark=remark)
    if keys is not None:
        keys.sign(command)
    prefix = encode_without_body(command)
    return (prefix, body) if body else (prefix,)


def _int32(number: int) -> int:
    """Return the number as a signed 32-bit integer: opaques wrap to negative numbers, as in Java."""
    return (number + 0x80000000 & 0xFFFFFFFF) - 0x80000000


async def open_connection(
    address: str,
    on_request: OnRequest,
    on_lost: OnLost,
    *,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
    connectivity: Connectivity | None = None,
    addresses: AddressMap = DIRECT,
) -> Connection:
    """Connect to `host:port` within `timeout` seconds. `tls` None: a plain connection.

    With `credentials` None, requests are not signed. `connectivity` records whether the cluster's servers are reachable; None
    records nothing. `addresses` says where the address can be reached. Raises Unreachable, ValueError for an invalid address,
    ClusterError for unreadable TLS files.
    """
    host, port = split_address(address, default_port=0)  # the default is never used: callers pass a port
    connection = Connection(address, on_request, on_lost, credentials)
    link = None if connectivity is None else Link(connectivity, host, port)
    try:
        await dial(host, port, lambda: connection.endpoint, tls=tls, timeout=timeout, link=link, addresses=addresses)
    except Unreachable as error:
        if isinstance(error.__cause__, (ConnectionError, ssl.SSLEOFError)) and tls is not None:
            raise Unreachable(f"{error}; {TLS_REFUSED}", error.failure) from error
        raise
    return connection
