"""Filters by tag: `*`, or tags joined by `||`.

A broker compares the hash of a message's whole tag with the hashes of the subscription, so other tags with the same hash pass:
the receiver must compare the tag itself.
"""

from functools import lru_cache

from mqbridge.wire.javahash import java_string_hash

ALL = "*"
SEPARATOR = "||"
TAG = "TAG"
SQL92 = "SQL92"

NO_TAG_CODE = 0


def split_expression(expression: str) -> list[str]:
    """Return the tags of an expression, in order; none if it matches everything."""
    if expression.strip() in {"", ALL}:
        return []
    return list(dict.fromkeys(tag for tag in (part.strip() for part in expression.split(SEPARATOR)) if tag))


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return the hash of a message's tag in the broker's consume queue: Java's hash, a signed 32-bit number as int64."""
    return java_string_hash(tag) if tag else NO_TAG_CODE
