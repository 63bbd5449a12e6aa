"""Signed credentials: a user name, a timestamp and a nonce, signed with the password.

A Master accepts them while the timestamp differs from its clock by authValidTimeStampPeriodMs at most, 20 s by default.

signature      form-encode(base64(HMAC-SHA1(password, user + timestamp + nonce)))
to a Master    AuthenticateInfo
to a Broker    "user timestamp nonce signature", unless the Master has issued an auth token, which replaces this text
"""

import base64
import hashlib
import hmac
from typing import NamedTuple
from urllib.parse import quote_plus

from mqbridge.tubemq.wire.pb.master_pb2 import AuthenticateInfo

NONCE_LIMIT = (1 << 31) - 1
"""Nonces are smaller than this: servers read them as signed 32-bit integers."""
_UNESCAPED = "*-._"
"""Characters other than letters and digits that Java's form encoding does not escape."""


class SignedCredentials(NamedTuple):
    """A user's name with a signature of the name, a timestamp (ms since the epoch) and a nonce."""

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


def sign(user: str, password: str, timestamp_ms: int, nonce: int) -> SignedCredentials:
    """Sign a user name, a timestamp and a nonce with the password."""
    digest = hmac.digest(password.encode(), f"{user}{timestamp_ms}{nonce}".encode(), hashlib.sha1)
    return SignedCredentials(user, timestamp_ms, nonce, quote_plus(base64.b64encode(digest), safe=_UNESCAPED))
