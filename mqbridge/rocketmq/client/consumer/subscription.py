"""Subscriptions of a group to a topic: all messages, messages with certain tags, or those that match an SQL92 expression.

A broker keeps one set of subscriptions per group. Each heartbeat of a member replaces the set, so members with different
subscriptions overwrite each other's. A broker filters tags by a 32-bit hash only, so the consumer compares the tags again, as the
Java clients do. SQL92 expressions are evaluated by the broker alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData
from mqbridge.rocketmq.wire.tags import ALL, SEPARATOR, SQL92, TAG, split_expression

RETRY_PREFIX = "%RETRY%"
"""Prefix of the name of a group's retry topic; the group's name follows."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to one topic; create it by `everything`, `tagged`, `parse_tags` or `sql92`.

    `expression` is the filter for the broker, `expression_type` its language: TAG or SQL92. The consumer filters by `tags` again;
    if they are empty, it does not.
    """

    topic: str
    expression: str = ALL
    expression_type: str = TAG
    tags: frozenset[str] = frozenset()

    def data(self, version: int) -> SubscriptionData:
        """Return the wire form for heartbeats and CHECK_CLIENT_CONFIG; `version` is a time in ms that must not decrease."""
        return SubscriptionData(self.topic, self.expression, version, self.expression_type)


def everything(topic: str) -> Subscription:
    """Return a subscription to all messages of a topic."""
    return Subscription(topic)


def tagged(topic: str, tags: Iterable[str]) -> Subscription:
    """Return a subscription to messages with one of these tags.

    Raises LocalProtocolError if there are no tags, or for a tag that an expression cannot contain.
    """
    distinct_tags = frozenset(tags)
    for tag in distinct_tags:
        if not tag or tag != tag.strip() or SEPARATOR in tag or tag == ALL:
            problem = "a tag must not be empty or '*', and not contain '||', or whitespace at its ends"
            raise LocalProtocolError(f"invalid tag {tag!r} in the subscription to {topic}: {problem}")
    if not distinct_tags:
        raise LocalProtocolError(f"the subscription to {topic} has no tags; use everything({topic!r}) for all messages")
    return Subscription(topic, f" {SEPARATOR} ".join(sorted(distinct_tags)), TAG, distinct_tags)


def parse_tags(topic: str, expression: str) -> Subscription:
    """Parse a tag expression of the Java clients: `a || b`, or `*`, or one without tags, which means all messages, too.

    Raises LocalProtocolError if `*` is one of the parts of a longer expression.
    """
    tags = split_expression(expression)
    return tagged(topic, tags) if tags else everything(topic)


def sql92(topic: str, expression: str) -> Subscription:
    """Return a subscription to messages whose properties match an SQL92 expression.

    The broker's setting enablePropertyFilter must be true. Raises LocalProtocolError for an empty expression.
    """
    if not expression.strip():
        raise LocalProtocolError(f"the SQL92 expression for {topic} is empty; use everything({topic!r}) for all messages")
    return Subscription(topic, expression, SQL92)


def retry_topic(group: str) -> str:
    """Return the group's retry topic, which redelivers messages that the group sent back."""
    return RETRY_PREFIX + group
