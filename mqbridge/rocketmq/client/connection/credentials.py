"""The keys that sign requests. They are read again while the client runs, because files with temporary keys change.

They are read before each connection, with each heartbeat, and after a broker has refused a signature.
"""

import asyncio
import math
import time
from dataclasses import dataclass, field

from mqbridge.net.secret import Secret
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.signing import UNIQUE_KEY_QUERY, UNSIGNED_QUERY_VERSION, sign

RENEW_PAUSE_S = 1.0
"""Minimum time between two readings of keys that a broker refused and that did not change. Without it, every refused request
would run the command that prints the keys."""


@dataclass(frozen=True, slots=True)
class Keys:
    """One reading of the credentials."""

    access_key: str
    """The user name; it may be logged."""
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    """The security token of temporary keys; None for permanent keys."""

    def sign(self, command: Command) -> None:
        """Sign a request, whose fields and body must be final.

        The signature leaves out the field that marks a query by unique key. 4.x brokers do the same, 5.3 brokers only if the
        request's version is at most 4.9.3. So such a request gets the version 4.9.3.
        """
        if UNIQUE_KEY_QUERY in command.ext:
            command.version = UNSIGNED_QUERY_VERSION
        sign(command.ext, command.body, self.access_key, self.secret_key, self.token)


class Credentials:
    """The credentials of one user. Call `read` before `keys`."""

    def __init__(self, access_key: Secret, secret_key: Secret, security_token: Secret | None = None) -> None:
        """`security_token` belongs to temporary keys of a token service."""
        self._access_key, self._secret_key = access_key, secret_key
        self._token = security_token
        self._keys: Keys | None = None
        self._unchanged_at = -math.inf
        """`time.monotonic` of the last reading, after a refusal, that found unchanged keys."""
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        """The lock that lets one `read` run at a time, after the event loop that it belongs to; None before the first `read`."""

    @property
    def keys(self) -> Keys:
        """The keys read last. Raises LookupError before the first reading."""
        if self._keys is None:
            raise LookupError("the credentials were not read yet: call `read` first")
        return self._keys

    async def read(self, *, instead_of: Keys | None = None) -> None:
        """Read the keys. `instead_of` are keys that a broker refused: read only if they are still the current ones.

        Refused keys that did not change are not read again within RENEW_PAUSE_S. A key that cannot be read keeps its last value.
        Raises ClusterError (FATAL) if it has none.
        """
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:  # a cluster may be used in several event loops, one after the other
            self._lock = loop, asyncio.Lock()
        async with self._lock[1]:  # an earlier reading must not replace a later one
            if instead_of is not None and (self._keys != instead_of or time.monotonic() - self._unchanged_at < RENEW_PAUSE_S):
                return
            fresh = instead_of is not None  # after a refusal, the output of a command is not reused
            access_key = await self._access_key.read(fresh=fresh)
            secret_key = await self._secret_key.read(fresh=fresh)
            token = None if self._token is None else await self._token.read(fresh=fresh)
            self._keys = Keys(access_key, secret_key, token)
            if self._keys == instead_of:
                self._unchanged_at = time.monotonic()

    def __repr__(self) -> str:
        return f"Credentials({self._access_key!r}, {self._secret_key!r}, {self._token!r})"
