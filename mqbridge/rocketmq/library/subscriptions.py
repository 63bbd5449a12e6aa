"""The subscriptions of a group, as `RocketMQClient.consumer` is given them."""

from collections.abc import Sequence

from mqbridge.errors import ConfigError
from mqbridge.rocketmq.client.subscription import Subscription, everything, sql92, tagged


def subscriptions_of(topics: str | Sequence[str], msg_types: Sequence[str], sql: str | None) -> tuple[Subscription, ...]:
    """One per topic, all with the same filter. Raises ConfigError for two kinds of filter, LocalProtocolError for a bad one."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if sql is not None and msg_types:
        raise ConfigError("a RocketMQ subscription filters by msg_types (tags) or by SQL92, not by both")
    if isinstance(msg_types, str):
        raise ConfigError(f"msg_types is a list: write [{msg_types!r}]")
    if sql is not None:
        return tuple(sql92(topic, sql) for topic in names)
    return tuple(tagged(topic, msg_types) if msg_types else everything(topic) for topic in names)
