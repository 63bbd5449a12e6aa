"""Request signatures, the same for the access control of 4.x and of 5.3.

HMAC-SHA1 over the values of all header fields, in the order of their names, and the body. Code, opaque, flag and remark are not
signed. Signing is the last step before encoding; a request whose fields changed is signed again.
"""

import base64
import hmac
from collections.abc import Collection, Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of the field
CREDENTIALS = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})
"""Fields that a gateway must not forward."""


UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""A field that 4.x brokers never sign, and 5.3 brokers not in requests that announce UNSIGNED_QUERY_VERSION or less."""
UNSIGNED_QUERY_VERSION = 399
_NOT_SIGNED = frozenset({SIGNATURE, UNIQUE_KEY_QUERY})


def signature(ext: Mapping[str, str], body: bytes, secret_key: str, without: Collection[str] = _NOT_SIGNED) -> str:
    """Compute the value of the field `Signature`; `without` are the names of unsigned fields."""
    names = [name for name in ext if name not in without]
    if all(map(str.isascii, names)):
        names.sort()
    else:  # Java sorts by UTF-16 units; utf-16-be bytes compare alike
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    content = "".join([ext[name] for name in names]).encode() + body
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def sign(ext: dict[str, str], body: bytes, access_key: str, secret_key: str, token: str | None = None) -> None:
    """Add credentials and signature to the fields of a request."""
    ext[ACCESS_KEY] = access_key
    if token:
        ext[SECURITY_TOKEN] = token
    ext[SIGNATURE] = signature(ext, body, secret_key)


def is_signed_by(ext: Mapping[str, str], body: bytes, secret_key: str) -> bool:
    """Return True if the request's signature was made with this key."""
    return hmac.compare_digest(ext.get(SIGNATURE, "").encode(), signature(ext, body, secret_key).encode())
