"""The clients that are connected to a broker: responses to requests of administration tools."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.bodies.base import Body, member, table_codec
from mqbridge.rocketmq.wire.bodies.groups import CLUSTERING, FROM_LAST, PASSIVELY, SubscriptionData


@dataclass(frozen=True, slots=True)
class ClientConnection(Body):
    """A client's connection to a broker. `version` is the version number that the client announces, like `codes.VERSION`.

    `absent` is the value of a field that the response does not contain; the second argument is the constructor's default.
    """

    client_id: str
    address: str = member("clientAddr")
    language: str = member("language", "JAVA", absent="")
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerConnections(Body):
    """Response to GET_CONSUMER_CONNECTION_LIST: the members of a consumer group, and its subscriptions.

    `bodies/groups.py` defines the values of `consume_type`, `message_model` and `consume_from`.
    """

    connections: tuple[ClientConnection, ...] = member("connectionSet")
    subscriptions: tuple[SubscriptionData, ...] = member("subscriptionTable", (), codec=table_codec(SubscriptionData, "topic"))
    consume_type: str = member("consumeType", PASSIVELY, absent="")
    message_model: str = member("messageModel", CLUSTERING, absent="")
    consume_from: str = member("consumeFromWhere", FROM_LAST, absent="")


@dataclass(frozen=True, slots=True)
class ProducerConnections(Body):
    """Response to GET_PRODUCER_CONNECTION_LIST: the members of a producer group."""

    connections: tuple[ClientConnection, ...] = member("connectionSet")
