"""Signatures of requests, which are the same for the access control of 4.x and of 5.3 brokers.

A signature is an HMAC-SHA1 over the values of all header fields (`ext`), in the order of their names, and the body. It does not
cover code, opaque, flag and remark. Signing is the last step before encoding; a request whose fields change must be signed again.
"""

import base64
import hmac
from collections.abc import Collection, Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of the field

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""A field that the signature does not cover at 4.x brokers.

5.3 brokers leave it out only if the request announces UNSIGNED_QUERY_VERSION or less, so every request with this field must.
"""
UNSIGNED_QUERY_VERSION = 399
"""The version number of RocketMQ 4.9.3."""
_UNSIGNED_NAMES = frozenset({SIGNATURE, UNIQUE_KEY_QUERY})


def signature(ext: Mapping[str, str], body: bytes, secret_key: str, unsigned_names: Collection[str] = _UNSIGNED_NAMES) -> str:
    """Return the value of the field `Signature`, which does not cover the fields in `unsigned_names`."""
    names = [name for name in ext if name not in unsigned_names]
    if all(map(str.isascii, names)):
        names.sort()
    else:  # Java sorts by UTF-16 code units, whose order is that of the UTF-16-BE bytes
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    content = "".join([ext[name] for name in names]).encode() + body
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def sign(ext: dict[str, str], body: bytes, access_key: str, secret_key: str, token: str | None = None) -> None:
    """Add the access key, the signature and, for temporary keys, the security token to the fields of a request."""
    ext[ACCESS_KEY] = access_key
    if token:
        ext[SECURITY_TOKEN] = token
    ext[SIGNATURE] = signature(ext, body, secret_key)


def is_signed_by(ext: Mapping[str, str], body: bytes, secret_key: str) -> bool:
    """Return True if the request's signature was made with this key."""
    return hmac.compare_digest(ext.get(SIGNATURE, "").encode(), signature(ext, body, secret_key).encode())
