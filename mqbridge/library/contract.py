"""The face that all clients share: the same verbs for the same things, whatever the system.

    async with PulsarClient("pulsar://localhost:6650") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"hello", key="customer-7")
        async with client.consumer("orders", group="billing") as consumer:
            async for message in consumer:
                print(message.key, message.payload)
                consumer.acknowledge(message)

`TubeMQClient("tubemq://…")` and `RocketMQClient("rocketmq://…")` read alike. Beyond the keyword arguments of these protocols each
client takes those of its system. The words are those of `mqbridge.message.Message`. A field that a system has no native place for
travels as the gateway carries it: a message that is sent here and then bridged stays the same message.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, Self

from mqbridge.library.opening import Opening
from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Pair, Position

CLOSE_TIMEOUT_S = 10.0
"""How long `close` waits for receipts and for the last acknowledgements."""

Properties = Mapping[str, str] | Iterable[Pair]
"""Names and values; pairs keep their order, and a name may come twice."""

Start = Literal["earliest", "latest"]
"""Where a group begins that has no position yet."""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """A message is stored.

    topic       its topic, as the producer was given it
    partition   in the system's own spelling, as in `ReceivedMessage.partition`
    position    as in `Message.position`; () where the system does not tell (TubeMQ, and a duplicate in Pulsar)
    message_id  the system's id of the message, as its own tools print it
    """

    topic: str
    partition: str
    position: Position
    message_id: str


class Producer(Protocol):
    """Sends messages to all partitions of a topic. A key chooses the partition and keeps the order of its messages."""

    @property
    def topic(self) -> str:
        """The topic."""

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
        """Send a message and return when it is stored; waits while `max_pending_bytes` are on their way.

        Calls that run side by side are sent together, in the order of the calls: `asyncio.gather(*map(producer.send, payloads))`.
        Times are ms since the epoch. Raises ClusterError, whose `failure` says what helps, and MappingError for a message that
        the system cannot carry.
        """

    async def flush(self) -> None:
        """Wait until everything sent so far is stored, or has failed."""

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for receipts, at most `timeout` seconds, then close; what has none by then fails with ConnectionLost."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class Consumer(Protocol):
    """Receives the messages of topics as a member of a group, and acknowledges them.

    `async for message in consumer` and `receive` hand out one message after the other, in order per partition. A message that is
    not acknowledged is delivered again after the consumer is closed, or its partition moves to another member.
    """

    @property
    def closed(self) -> bool:
        """True once `close` was called."""

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds.

        Raises TimeoutError; GapError when the system no longer holds messages that were never read; ClusterError when the
        consumer is closed or cannot continue.
        """

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Mark a message as done; the cluster hears of it soon, at the latest in `flush` or `close`.

        Returns False, and does nothing, when the message is no longer this consumer's: its partition moved to another member, or
        `seek` left it behind. It is then delivered again.
        """

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Have a message delivered again, not before `delay_s` seconds. Returns like `acknowledge`."""

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the group: to an end or a time in every partition that this consumer holds, or to a message in its partition.

        The next message received of a partition is the one there. Raises ClusterError, FATAL where the system cannot do it.
        """

    async def flush(self) -> None:
        """Wait until the cluster has every acknowledgement. Raises ClusterError."""

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements and leave the group, within `timeout` seconds; iteration then ends."""

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class Client(Protocol):
    """One cluster. It connects when it is first asked for something, and closes what it has opened."""

    def producer(self, topic: str) -> "Opening[Producer]":
        """Open a producer of a topic: `await` it, or use it with `async with`. Raises ClusterError."""

    def consumer(self, topics: str | Sequence[str], group: str, *, start: Start = "earliest") -> "Opening[Consumer]":
        """Join a group that reads these topics: `await` it, or use it with `async with`. Raises ClusterError.

        The group is a consumer group of TubeMQ and RocketMQ, and a subscription of Pulsar.
        """

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close every producer and consumer, the last one first, then the connections."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...
