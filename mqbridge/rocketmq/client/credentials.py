"""The keys that requests are signed with, read again while the client runs: keys that last for hours lie in files.

They are read before each connection, with each round of heartbeats, and after a broker has refused a signature.
"""

import asyncio
import math
import time
from dataclasses import dataclass, field

from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.signing import UNIQUE_KEY_QUERY, UNSIGNED_QUERY_VERSION, sign
from mqbridge.secret import Secret

RENEW_PAUSE_S = 1.0
"""Between two readings after refusals that brought nothing new: a command is not run again for each refused request."""


@dataclass(frozen=True, slots=True)
class Keys:
    """One reading of the credentials."""

    access_key: str
    """A user's name, which may be shown."""
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    def sign(self, command: Command) -> None:
        """Put the credentials into a request, whose fields and body are final by now.

        Queries by unique key have a field that brokers of 4.x leave out of what they verify, and 5.3 with clients up to 4.9.3.
        """
        if UNIQUE_KEY_QUERY in command.ext:
            command.version = UNSIGNED_QUERY_VERSION
        sign(command.ext, command.body, self.access_key, self.secret_key, self.token)


class Credentials:
    """Of one user. `read` before `keys`."""

    def __init__(self, access_key: Secret, secret_key: Secret, security_token: Secret | None = None) -> None:
        """`security_token` comes with keys that a token service has made for a while."""
        self._access_key, self._secret_key, self._token = access_key, secret_key, security_token
        self._keys: Keys | None = None
        self._in_vain_at = -math.inf
        """Time of the last reading after a refusal that brought nothing new."""
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def keys(self) -> Keys:
        """As they were read last. Raises LookupError before they were."""
        if self._keys is None:
            raise LookupError("the credentials were not read yet")
        return self._keys

    async def read(self, *, instead_of: Keys | None = None) -> None:
        """Read all. `instead_of` are keys that were refused: when others are known by now, nothing is read.

        Nor is anything when a moment ago nothing new was found in their place. Raises ClusterError (FATAL) when they cannot be
        read and never were.
        """
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:  # a cluster may be used in one loop after another
            self._lock = loop, asyncio.Lock()
        async with self._lock[1]:  # what was read earlier must not replace what was read later
            if instead_of is not None and (self._keys != instead_of or time.monotonic() - self._in_vain_at < RENEW_PAUSE_S):
                return
            fresh = instead_of is not None
            access_key = await self._access_key.read(fresh=fresh)
            secret_key = await self._secret_key.read(fresh=fresh)
            token = None if self._token is None else await self._token.read(fresh=fresh)
            self._keys = Keys(access_key, secret_key, token)
            if self._keys == instead_of:
                self._in_vain_at = time.monotonic()

    def __repr__(self) -> str:
        return f"Credentials({self._access_key!r}, {self._secret_key!r}, {self._token!r})"
