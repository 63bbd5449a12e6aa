"""What a token says of itself, read without verifying it: brokers do that. Other tokens than JWTs say nothing."""

import base64
import json
from typing import NamedTuple


class Claims(NamedTuple):
    """Of a token."""

    subject: str | None = None
    """The role, unless brokers are set up to take another claim."""
    ends: float | None = None
    """When it expires, s since the epoch."""


def claims_of(token: str) -> Claims:
    """Its claims; none where it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return Claims()
    try:
        said = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return Claims()
    if not isinstance(said, dict):
        return Claims()
    subject, ends = said.get("sub"), said.get("exp")
    if not isinstance(ends, (int, float)) or isinstance(ends, bool):
        ends = None
    return Claims(subject if isinstance(subject, str) else None, ends)
