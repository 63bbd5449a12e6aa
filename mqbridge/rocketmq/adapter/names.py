"""The names that topics and groups of a RocketMQ cluster can have, as the contract describes names."""

import re

from mqbridge.adapter.names import NameRule
from mqbridge.rocketmq.client.consumer.subscription import RETRY_PREFIX
from mqbridge.rocketmq.wire.names import FORBIDDEN_TOPICS, MAX_GROUP_CHARS, MAX_TOPIC_CHARS

_CHARACTER = re.compile(r"[%|a-zA-Z0-9_-]")
_CHARACTERS = "letters, digits and the characters % | _ - are permitted"
MAX_JOINED_GROUP_CHARS = MAX_GROUP_CHARS - len(RETRY_PREFIX)
"""Maximum length of the name of a group that can be joined: the name of its retry topic is longer, with the same limit."""


class TopicNameRule(NameRule):
    """The rule for topics, which also excludes the system topics to which clients must not send."""

    def problem(self, name: str) -> str | None:
        """Return why a name is invalid; None if it is valid."""
        if name in FORBIDDEN_TOPICS:
            return "it is the name of a system topic"
        return NameRule.problem(self, name)


TOPIC_NAME = TopicNameRule(_CHARACTER, _CHARACTER, MAX_TOPIC_CHARS, f"1 to {MAX_TOPIC_CHARS} {_CHARACTERS}")
GROUP_NAME = NameRule(_CHARACTER, _CHARACTER, MAX_JOINED_GROUP_CHARS, f"1 to {MAX_JOINED_GROUP_CHARS} {_CHARACTERS}")
