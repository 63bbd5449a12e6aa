"""Makes the subscriptions of a consumer from the arguments of `RocketMQClient.consumer` and `pop_consumer`."""

from collections.abc import Sequence

from mqbridge.errors import ConfigError
from mqbridge.rocketmq.client.consumer.subscription import Subscription, everything, sql92, tagged


def make_subscriptions(topics: str | Sequence[str], msg_types: Sequence[str], sql: str | None) -> tuple[Subscription, ...]:
    """Return one subscription per topic, all with the same filter; without `msg_types` (tags) and `sql`, they match everything.

    Raises ConfigError if both `msg_types` and `sql` are given, or if `msg_types` is a string; LocalProtocolError for an invalid
    filter.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if sql is not None and msg_types:
        raise ConfigError(
            f"a subscription to {', '.join(names)} filters by msg_types (tags) or by sql, not by both: give one of them"
        )
    if isinstance(msg_types, str):
        raise ConfigError(f"msg_types is a list: write [{msg_types!r}]")
    if sql is not None:
        return tuple(sql92(topic, sql) for topic in names)
    return tuple(tagged(topic, msg_types) if msg_types else everything(topic) for topic in names)
