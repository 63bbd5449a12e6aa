"""Who we are to a cluster: a user and his password, or nobody; and what a Master that refuses us means.

One object per cluster, which outlives its connections: it remembers whether the Masters ever took what we bring, as a producer
and as a consumer, which they may ask for credentials apart.
"""

import secrets
import time
from enum import Enum

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.secret import Secret
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.credentials import NONCES, Signed, sign


class Role(Enum):
    """As what a client comes."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Credentials:
    """`user` and `password` belong together; without them we are nobody."""

    def __init__(self, user: str | None = None, password: Secret | None = None) -> None:
        self.user, self._password = user, password
        self._taken: set[Role] = set()

    async def sign(self) -> Signed | None:
        """A signature of now, by the password as its source has it now; None of nobody.

        Raises ClusterError (FATAL) when the password cannot be read and never was.
        """
        if self.user is None or self._password is None:
            return None
        password = await self._password.read()
        return sign(self.user, password, time.time_ns() // 1_000_000, secrets.randbelow(NONCES))

    def taken(self, role: Role) -> None:
        """A Master took us."""
        self._taken.add(role)

    def refused(self, what: str, code: int, said: str, role: Role) -> ServerRefused:
        """The exception for a refusal by a Master; `what` was asked as `role`, `said` is the Master's own text.

        Refused credentials are FATAL until they were taken once: later they may be mended without us.
        """
        if code != codes.CERTIFICATE_FAILURE:
            return codes.refused(what, code, said)
        failure = Failure.RETRY if role in self._taken else Failure.FATAL
        return ServerRefused(f"{what} was refused: {self._why(said)} (415 CERTIFICATE_FAILURE: {said})", code, failure)

    def _why(self, said: str) -> str:
        if self.user is None or self._password is None:
            return "the Master lets nobody in without credentials: set auth.user and auth.password"
        if "timestamp" in said:
            return (
                "our clock and the Master's differ by more than it allows (authValidTimeStampPeriodMs, as shipped 20 s): set"
                f" the clocks right; user {self.user!r} was not looked at"
            )
        return f"the Master does not take user {self.user!r} with the password from {self._password.source}: correct auth"


def as_credentials(user: str | None, password: Secret | str | None) -> Credentials:
    """Of a program's own settings. Raises ClusterError (FATAL) when one of the two is missing."""
    if (user is None) != (password is None):
        raise ClusterError("a user and a password belong together", Failure.FATAL)
    return Credentials(user, Secret(password) if isinstance(password, str) else password)
