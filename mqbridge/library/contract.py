"""The interface that the clients of all systems share.

    async with PulsarClient("pulsar://localhost:6650") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"hello", key="customer-7")
        async with client.consumer("orders", group="billing") as consumer:
            async for message in consumer:
                print(message.key, message.payload)
                consumer.acknowledge(message)

`TubeMQClient("tubemq://…")` and `RocketMQClient("rocketmq://…")` are used in the same way. Each has more keyword arguments,
specific to its system. Arguments have the names of the fields of `mqbridge.message.Message`. A field that a system does not have
is stored in a reserved property, as the gateway does it: a gateway that bridges the message to another system restores the field.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, Self

from mqbridge.library.opening import Opening
from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Pair, Position

CLOSE_TIMEOUT_S = 10.0
"""Time limit of `close` for receipts and for the last acknowledgements."""

Properties = Mapping[str, str] | Iterable[Pair]
"""Names and values of properties; pairs keep their order, and a name may occur several times."""

Start = Literal["earliest", "latest"]
"""The position at which a group without a committed position begins."""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Confirms that a message is stored.

    topic       the topic, as it was given to the producer
    partition   the partition in the notation of the system, as in `ReceivedMessage.partition`
    position    the position, as in `Message.position`; () if the system does not report it (TubeMQ, and a duplicate in Pulsar)
    message_id  the system's id of the message, as the system's own tools print it
    status      `SUCCESS`; on RocketMQ also `FLUSH_DISK_TIMEOUT`, `SLAVE_NOT_AVAILABLE` or `FLUSH_SLAVE_TIMEOUT`: the message is
                stored, but not yet on disk or at a slave, although the broker's settings demand it
    """

    topic: str
    partition: str
    position: Position
    message_id: str
    status: str = "SUCCESS"


class Producer(Protocol):
    """Sends messages to all partitions of a topic. The key chooses the partition; messages with the same key keep their order.

    Without a key, the producer chooses the partition.
    """

    @property
    def topic(self) -> str:
        """The topic, as it was given to the client."""

    @property
    def closed(self) -> bool:
        """True once `close` was called."""

    async def send(
        self,
        payload: bytes | None,
        *,
        key: str | bytes | None = None,
        keys: Sequence[str] = (),
        msg_type: str | None = None,
        properties: Properties = (),
        event_time: int | None = None,
        deliver_at: int | None = None,
    ) -> SendReceipt:
        """Send a message, wait until it is stored, and return its receipt. Waits first while `max_pending_bytes` are in flight.

        Concurrent calls are sent in batches, in the order of the calls: `asyncio.gather(*map(producer.send, payloads))`.
        `keys` are index keys (RocketMQ's KEYS), which do not influence the partition.
        Times are ms since the epoch; the payload None is a tombstone. Raises ClusterError, whose `failure` says whether to retry,
        and MappingError for a message that the system cannot store.
        """

    async def flush(self) -> None:
        """Wait until all messages sent so far are stored or have failed."""

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for receipts, at most `timeout` seconds, then close; `send` calls without a receipt raise ConnectionLost."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class Consumer(Protocol):
    """Receives the messages of topics as a member of a group, and acknowledges them.

    `async for message in consumer` and `receive` return one message after the other, in the order of each partition. A message
    that is not acknowledged is delivered again after the consumer is closed, or after its partition moves to another member.
    """

    @property
    def closed(self) -> bool:
        """True once `close` was called."""

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Wait for the next message, at most `timeout` seconds (None: without limit), and return it.

        Raises TimeoutError after `timeout` seconds, GapError if the system has deleted messages that were never read, and
        ClusterError if the consumer is closed or cannot continue.
        """

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Acknowledge a message; the acknowledgement is sent to the cluster soon, at the latest by `flush` or `close`.

        Returns False, and does nothing, if the message no longer belongs to this consumer: its partition moved to another member,
        or `seek` moved the group. The message is then delivered again, unless the seek skipped it. A second acknowledgement of a
        message may return True or False.
        """

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Request redelivery of a message after at least `delay_s` seconds. Returns False in the same cases as `acknowledge`."""

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the group's position.

        With `earliest`, `latest` or a time, it moves in every partition that is assigned to this consumer; with a message, only
        in the message's partition. The next message received from a partition is the one at the new position. Raises
        ClusterError; it is FATAL if the system does not support the call.
        """

    async def flush(self) -> None:
        """Wait until the cluster has confirmed all acknowledgements. Raises ClusterError."""

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements and leave the group, within `timeout` seconds; then iteration ends."""

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class Client(Protocol):
    """The client of one cluster. It connects on first use, and closes the producers and consumers that it has opened."""

    def producer(self, topic: str) -> "Opening[Producer]":
        """Return an unopened producer of a topic: to open it, `await` it or use `async with`. Opening raises ClusterError."""

    def consumer(self, topics: str | Sequence[str], group: str, *, start: Start = "earliest") -> "Opening[Consumer]":
        """Return an unopened consumer of these topics: to open it, `await` it or use `async with`. Opening raises ClusterError.

        The group is a consumer group in TubeMQ and RocketMQ, and a subscription in Pulsar.
        """

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close every producer and consumer, the last opened one first, then the connections, within about `timeout` seconds."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...
