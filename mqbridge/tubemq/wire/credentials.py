"""What a user signs: his name, a time and a number, by his password. A server takes the time for a few seconds only.

signature      form-encode(base64(HMAC-SHA1(password, user + timestamp + nonce)))
to a Master    AuthenticateInfo
to a Broker    "user timestamp nonce signature", where the Master hands out no token
"""

import base64
import hashlib
import hmac
from typing import NamedTuple
from urllib.parse import quote_plus

from mqbridge.tubemq.wire.pb.master_pb2 import AuthenticateInfo

NONCES = (1 << 31) - 1
"""Numbers are below this one."""
_KEPT = "*-._"
"""What Java's form encoding leaves besides letters and digits."""


class Signed(NamedTuple):
    """A user's signature of a time (ms since the epoch) and a number."""

    user: str
    timestamp_ms: int
    nonce: int
    signature: str

    @property
    def for_master(self) -> AuthenticateInfo:
        """As Masters take it."""
        return AuthenticateInfo(
            userName=self.user, timestamp=self.timestamp_ms, nonce=self.nonce, othParams="", signature=self.signature
        )

    @property
    def for_broker(self) -> str:
        """As Brokers take it."""
        return f"{self.user} {self.timestamp_ms} {self.nonce} {self.signature}"


def sign(user: str, password: str, timestamp_ms: int, nonce: int) -> Signed:
    """Sign a time and a number."""
    digest = hmac.digest(password.encode(), f"{user}{timestamp_ms}{nonce}".encode(), hashlib.sha1)
    return Signed(user, timestamp_ms, nonce, quote_plus(base64.b64encode(digest), safe=_KEPT))
