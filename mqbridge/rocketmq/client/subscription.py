"""What a group reads of a topic: everything, messages with certain tags, or what an SQL92 expression lets through.

The broker keeps one set of subscriptions per group, replaced by every heartbeat of any member; members that differ take each
other's topics away. It compares tags by a hash of 32 bits, so a consumer compares them again, exactly, as the Java clients do.
An SQL92 expression is judged by the broker alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData
from mqbridge.rocketmq.wire.tags import ALL, SEPARATOR, SQL92, TAG, split_expression

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a group; made by `everything`, `tagged` or `sql92`. `tags` empty: no filter here."""

    topic: str
    expression: str = ALL
    kind: str = TAG
    tags: frozenset[str] = frozenset()

    def data(self, version: int) -> SubscriptionData:
        """As heartbeats and CHECK_CLIENT_CONFIG carry it; `version` (ms) must not go back."""
        return SubscriptionData(self.topic, self.expression, version, self.kind)


def everything(topic: str) -> Subscription:
    """All messages of a topic."""
    return Subscription(topic)


def tagged(topic: str, tags: Iterable[str]) -> Subscription:
    """Messages whose tag is one of these. Raises LocalProtocolError for a tag that an expression cannot say."""
    wanted = frozenset(tags)
    for tag in wanted:
        if not tag or tag != tag.strip() or SEPARATOR in tag or tag == ALL:
            raise LocalProtocolError(f"{tag!r} cannot be a tag in a subscription of {topic}: no blank ends, no '||', not '*'")
    if not wanted:
        raise LocalProtocolError(f"a subscription of {topic} by tags names none; use everything({topic!r})")
    return Subscription(topic, f" {SEPARATOR} ".join(sorted(wanted)), TAG, wanted)


def parse_tags(topic: str, expression: str) -> Subscription:
    """A tag expression as the Java clients take it: `*`, or `a || b`. Raises LocalProtocolError."""
    tags = split_expression(expression)
    return tagged(topic, tags) if tags else everything(topic)


def sql92(topic: str, expression: str) -> Subscription:
    """Messages whose properties satisfy an SQL92 expression; the broker needs enablePropertyFilter=true."""
    if not expression.strip():
        raise LocalProtocolError(f"the SQL92 expression for {topic} is empty")
    return Subscription(topic, expression, SQL92)


def retry_topic(group: str) -> str:
    """Where messages that a group sent back come again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where messages end that a group sent back too often."""
    return DLQ_PREFIX + group
