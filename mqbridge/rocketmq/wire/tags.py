"""Filter expressions of a subscription by tag: tags joined by `||`, or `*` or an expression without tags for all messages.

The broker compares only the hash of a message's tag with the hashes of the subscribed tags, so it also delivers messages whose
tag has the same hash by chance: the receiver must compare the tag itself.
"""

from functools import lru_cache

from mqbridge.wire.javahash import java_string_hash

ALL = "*"
"""The expression that matches every message."""
SEPARATOR = "||"
TAG, SQL92 = "TAG", "SQL92"
"""Types of filter expressions."""

NO_TAG_CODE = 0
"""The hash of a message without a tag."""


def split_expression(expression: str) -> list[str]:
    """Return the tags of an expression, in order and without repeats.

    The list is empty if the expression matches every message: `*`, or an expression without tags, such as "" or `||`.
    """
    if expression.strip() in {"", ALL}:
        return []
    return list(dict.fromkeys(tag for tag in (part.strip() for part in expression.split(SEPARATOR)) if tag))


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return the hash of a tag (`tagsCode` at brokers): that of Java's String, a signed 32-bit number; 0 for no tag."""
    return java_string_hash(tag) if tag else NO_TAG_CODE
