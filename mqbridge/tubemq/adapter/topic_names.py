"""The names that Masters accept for topics."""

import re

from mqbridge.errors import ConfigError

MAX_TOPIC_CHARS = 64
"""Maximum length of a topic's name."""
_TOPIC = re.compile(r"[a-zA-Z]\w+", re.ASCII)


def check_topic_name(topic: str) -> None:
    """Raise ConfigError if Masters accept no topic of this name."""
    if not _TOPIC.fullmatch(topic) or len(topic) > MAX_TOPIC_CHARS:
        raise ConfigError(
            f"{topic[:80]!r} cannot be a topic of TubeMQ",
            hint=f"Use a letter, then letters, digits and _, {MAX_TOPIC_CHARS} characters at most",
        )
