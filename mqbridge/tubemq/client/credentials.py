"""Credentials of a cluster: user and password, or none; and the errors for a Master that refuses them.

One object per cluster, which outlives its connections: it remembers whether the Masters ever accepted us as a producer and as a
consumer; Masters may require credentials for either.
"""

import secrets
import time
from enum import Enum

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.secret import Secret
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.credentials import NONCE_LIMIT, Signed, sign


class Role(Enum):
    """The role in which a client registers."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Credentials:
    """`user` and `password` belong together; without them requests are not signed."""

    def __init__(self, user: str | None = None, password: Secret | None = None) -> None:
        self.user, self._password = user, password
        self._accepted: set[Role] = set()

    async def sign(self) -> Signed | None:
        """Return a fresh signature with the current password; None without a user.

        Raises ClusterError (FATAL) if the password cannot be read and never was.
        """
        if self.user is None or self._password is None:
            return None
        password = await self._password.read()
        return sign(self.user, password, time.time_ns() // 1_000_000, secrets.randbelow(NONCE_LIMIT))

    def accepted(self, role: Role) -> None:
        """Note that a Master accepted us in this role."""
        self._accepted.add(role)

    def refused(self, request: str, code: int, text: str, role: Role) -> ServerRefused:
        """Return the exception for a refusal by a Master; `request` is in words, `text` is the Master's own message.

        Refused credentials are FATAL until they were accepted once: after that the cluster's administrators may repair them.
        """
        if code != codes.CERTIFICATE_FAILURE:
            return codes.refused(request, code, text)
        failure = Failure.RETRY if role in self._accepted else Failure.FATAL
        return ServerRefused(f"{request} was refused: {self._reason(text)} (415 CERTIFICATE_FAILURE: {text})", code, failure)

    def _reason(self, text: str) -> str:
        if self.user is None or self._password is None:
            return "the Master requires credentials: set auth.user and auth.password"
        if "timestamp" in text:
            return (
                "our clock and the Master's differ by more than it allows (authValidTimeStampPeriodMs, 20 s by default):"
                f" synchronize the clocks; user {self.user!r} was not checked"
            )
        return f"the Master does not accept user {self.user!r} with the password from {self._password.source}: correct auth"


def as_credentials(user: str | None, password: Secret | str | None) -> Credentials:
    """Make credentials from a program's settings. Raises ClusterError (FATAL) if one of the two is missing."""
    if (user is None) != (password is None):
        raise ClusterError("a user and a password belong together", Failure.FATAL)
    return Credentials(user, Secret(password) if isinstance(password, str) else password)
