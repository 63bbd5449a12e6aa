"""The clients of the binary protocol, as the web side sees and closes them."""

from collections.abc import Mapping, Sequence

from mqbridge.pulsar.server.broker import Broker
from mqbridge.pulsar.server.schemas import Schemas
from mqbridge.pulsar.server.web.served import ConsumerView, ProducerView, SubscriptionView


class ServedClients:
    """See `mqbridge.pulsar.server.web.served.ServedTopics`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def schemas(self) -> Schemas:
        """The schemas of topics."""
        return self._broker.schemas

    def producers(self, backing: str, partition: int) -> Sequence[ProducerView]:
        """Return the producers of a partition."""
        found = self._broker.producers.get((backing, partition))
        if found is None:
            return ()
        return [
            ProducerView(each.name, each.link.peer, each.received_messages, each.received_bytes, each.opened_at)
            for each in found.by_name.values()
        ]

    def subscriptions(self, backing: str, partition: int) -> Mapping[str, SubscriptionView]:
        """Return the subscriptions that have consumers here, by name; readers are among them."""
        return {
            subscription.name: SubscriptionView(
                subscription.type_name,
                [
                    ConsumerView(each.name, each.link.peer, max(0, each.permits), each.unacknowledged_messages, each.opened_at)
                    for each in subscription.consumers
                ],
                subscription.feed.is_held,
            )
            for subscription in self._broker.subscriptions_of(backing, partition)
        }

    async def disconnect(self, backing: str, partition: int, subscription: str) -> None:
        """Close the consumers of a subscription; SDKs come back by themselves."""
        for each in self._broker.subscriptions_of(backing, partition):
            if each.name == subscription:
                each.send_away()
                self._broker.end_if_unused(each)

    async def close_topic(self, backing: str) -> None:
        """Close all producers and consumers of a topic; clients that come back soon are told to wait."""
        self._broker.close_topic(backing)
