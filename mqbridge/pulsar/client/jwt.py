"""Claims of a JSON Web Token, read without verification (brokers verify). Other tokens have no claims."""

import base64
import json
from typing import NamedTuple


class Claims(NamedTuple):
    """Claims of a token."""

    subject: str | None = None
    """The role, unless brokers are configured to use another claim."""
    ends: float | None = None
    """Expiry time, s since the epoch."""


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
    subject, ends = claims.get("sub"), claims.get("exp")
    if not isinstance(ends, (int, float)) or isinstance(ends, bool):
        ends = None
    return Claims(subject if isinstance(subject, str) else None, ends)
