"""Credentials of a cluster (user and password, or none), and the errors for credentials that a Master refuses.

There is one object per cluster, which outlives its connections. It records whether a Master ever accepted us as a producer, and
as a consumer: Masters can require credentials for each role separately.
"""

import secrets
import time
from enum import Enum

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.net.secret import Secret
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.credentials import NONCE_LIMIT, SignedCredentials, sign


class Role(Enum):
    """The role in which a client registers."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Credentials:
    """User and password of one cluster; set both or neither. Without them requests are not signed."""

    def __init__(self, user: str | None = None, password: Secret | None = None) -> None:
        self.user, self._password = user, password
        self._accepted_roles: set[Role] = set()

    async def sign(self) -> SignedCredentials | None:
        """Return a fresh signature, made with the current password; None without credentials.

        If the password cannot be read, the one that was read last is used; without one, raises ClusterError (FATAL).
        """
        if self.user is None or self._password is None:
            return None
        password = await self._password.read()
        return sign(self.user, password, time.time_ns() // 1_000_000, secrets.randbelow(NONCE_LIMIT))

    def record_acceptance(self, role: Role) -> None:
        """Record that a Master accepted us in this role."""
        self._accepted_roles.add(role)

    def refusal_error(self, request: str, code: int, text: str, role: Role) -> ServerRefused:
        """Return the exception for a Master's refusal of a request in this role.

        `request` describes the request; `code` and `text` are the Master's error code and message. If the Master refuses
        credentials that no Master ever accepted in this role, the error is FATAL. If they were accepted before, it is RETRY: the
        administrators may restore them.
        """
        if code != codes.CERTIFICATE_FAILURE:
            return codes.refusal_error(request, code, text)
        failure = Failure.RETRY if role in self._accepted_roles else Failure.FATAL
        return ServerRefused(f"{request} was refused: {self._reason(text)} (415 CERTIFICATE_FAILURE: {text})", code, failure)

    def _reason(self, text: str) -> str:
        """Return why the Master refused the credentials, and what to change; `text` is the Master's error message."""
        if self.user is None or self._password is None:
            return "the Master requires credentials: set auth.user and auth.password"
        if "timestamp" in text:  # the signature contains the time, which the Master checks first
            return (
                "the clocks of this machine and of the Master differ by more than it allows"
                " (authValidTimeStampPeriodMs, 20 s by default):"
                f" synchronize the clocks; user {self.user!r} was not checked"
            )
        return f"the Master does not accept user {self.user!r} with the password from {self._password.source}: correct auth"


def as_credentials(user: str | None, password: Secret | str | None) -> Credentials:
    """Make Credentials from a user and a password, or from None and None. Raises ClusterError (FATAL) if only one is set."""
    if (user is None) != (password is None):
        raise ClusterError("user and password must be set together: one of them is missing", Failure.FATAL)
    return Credentials(user, Secret(password) if isinstance(password, str) else password)
