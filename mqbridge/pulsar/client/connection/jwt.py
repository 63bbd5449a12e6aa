"""Claims of a JSON Web Token (JWT). The brokers verify tokens; they are only read here. Other kinds of tokens have no claims."""

import base64
import json
from typing import NamedTuple


class Claims(NamedTuple):
    """Claims of a token."""

    subject: str | None = None
    """Role of the client, unless the brokers read the role from another claim; None if the token has no subject."""
    expires_at: float | None = None
    """Expiry time in seconds since the epoch; None if the token has none."""


def claims_of(token: str) -> Claims:
    """Return the claims of a token; empty claims if it is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return Claims()
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return Claims()
    if not isinstance(claims, dict):
        return Claims()
    subject, expires_at = claims.get("sub"), claims.get("exp")
    if not isinstance(expires_at, (int, float)) or isinstance(expires_at, bool):
        expires_at = None
    return Claims(subject if isinstance(subject, str) else None, expires_at)
