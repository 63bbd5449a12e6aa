"""Signed credentials: a user name, a timestamp and a nonce, signed with the password. A signature is valid for a few seconds.

signature      form-encode(base64(HMAC-SHA1(password, user + timestamp + nonce)))
to a Master    AuthenticateInfo
to a Broker    "user timestamp nonce signature", if the Master issues no token
"""

import base64
import hashlib
import hmac
from typing import NamedTuple
from urllib.parse import quote_plus

from mqbridge.tubemq.wire.pb.master_pb2 import AuthenticateInfo

NONCE_LIMIT = (1 << 31) - 1
"""Upper limit (exclusive) of nonces."""
_UNESCAPED = "*-._"
"""Characters other than letters and digits that Java's form encoding does not escape."""


class Signed(NamedTuple):
    """A user's signature of a timestamp (ms since the epoch) and a nonce."""

    user: str
    timestamp_ms: int
    nonce: int
    signature: str

    @property
    def for_master(self) -> AuthenticateInfo:
        """The form that Masters accept."""
        return AuthenticateInfo(
            userName=self.user, timestamp=self.timestamp_ms, nonce=self.nonce, othParams="", signature=self.signature
        )

    @property
    def for_broker(self) -> str:
        """The form that Brokers accept."""
        return f"{self.user} {self.timestamp_ms} {self.nonce} {self.signature}"


def sign(user: str, password: str, timestamp_ms: int, nonce: int) -> Signed:
    """Sign a timestamp and a nonce."""
    digest = hmac.digest(password.encode(), f"{user}{timestamp_ms}{nonce}".encode(), hashlib.sha1)
    return Signed(user, timestamp_ms, nonce, quote_plus(base64.b64encode(digest), safe=_UNESCAPED))
