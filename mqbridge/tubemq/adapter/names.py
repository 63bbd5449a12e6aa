"""The names that topics and groups can have.

The Master checks a topic's name when it is created. A group is created by its first member, and only its length is checked. But
the web APIs show, move and delete only groups whose names match their rule, and `#` separates the parts of the texts by which the
Master assigns partitions.
"""

import re

from mqbridge.adapter.names import NameRule
from mqbridge.errors import ConfigError

MAX_TOPIC_CHARS = 64
MAX_GROUP_CHARS = 1024
"""Limits of the Masters."""
_LETTER, _WORD, _GROUP = (re.compile(pattern, re.ASCII) for pattern in (r"[a-zA-Z]", r"\w", r"[\w-]"))
TOPIC_NAME = NameRule(
    _LETTER,
    _WORD,
    MAX_TOPIC_CHARS,
    f"Use a letter, then letters, digits and _, 2 to {MAX_TOPIC_CHARS} characters",
    min_chars=2,
)
GROUP_NAME = NameRule(
    _LETTER,
    _GROUP,
    MAX_GROUP_CHARS,
    f"Use a letter, then letters, digits, _ and -, 2 to {MAX_GROUP_CHARS} characters",
    min_chars=2,
)
"""Names with which everything works; see `check_group_name` for those with which members can read."""


def check_topic_name(topic: str) -> None:
    """Raise ConfigError if Masters accept no topic of this name."""
    if TOPIC_NAME.problem(topic) is not None:
        raise ConfigError(f"{topic[:80]!r} cannot be a topic of TubeMQ", hint=TOPIC_NAME.text)


def check_group_name(group: str) -> None:
    """Raise ConfigError if a member of a group of this name gets no partitions.

    Groups with other names than GROUP_NAME describes, such as `a.b`, can read, but the web APIs refuse them.
    """
    if not group.strip() or len(group) > MAX_GROUP_CHARS or "#" in group:
        raise ConfigError(f"{group[:80]!r} cannot be a group", hint=f"Give it 1 to {MAX_GROUP_CHARS} characters without #")
