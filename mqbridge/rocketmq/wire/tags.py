"""Filters by tag: `*`, or tags joined by `||`.

A broker compares the hash of a message's whole tag with those of the subscription, so foreign tags of the same hash pass: whoever
receives has to compare the tag itself once more.
"""

from functools import lru_cache

from mqbridge.wire.javahash import java_string_hash

ALL = "*"
SEPARATOR = "||"
TAG = "TAG"
SQL92 = "SQL92"

NO_TAG_CODE = 0


def split_expression(expression: str) -> list[str]:
    """The tags of an expression, in order; none for everything."""
    if expression.strip() in {"", ALL}:
        return []
    return list(dict.fromkeys(tag for tag in (part.strip() for part in expression.split(SEPARATOR)) if tag))


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """What the broker's queue index has of a message's tag: Java's hash, a signed 32-bit number as int64."""
    return java_string_hash(tag) if tag else NO_TAG_CODE
