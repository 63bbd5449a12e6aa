"""The producer that `TubeMQClient.producer` opens: sends messages to a topic.

Messages with a key are sent to the key's partition, in order. Messages without a key are sent to the partitions in turn (round
robin); Brokers with failures are avoided, and a message that one Broker does not store is sent to another.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import Self
from zlib import crc32

from mqbridge.errors import ClusterError, Failure, MappingError, MqbridgeError
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Properties, SendReceipt
from mqbridge.library.send_window import MAX_PENDING_BYTES, SendWindow
from mqbridge.message import Message
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.waiting_sends import Caller
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender, settle_future
from mqbridge.tubemq.client.producer.send_result import SenderClosed, SendResult, failure_of
from mqbridge.tubemq.library.load_balancing_sender import LoadBalancingSender
from mqbridge.tubemq.mapping.properties import parse_pairs, system_fields
from mqbridge.tubemq.mapping.request import encode
from mqbridge.tubemq.mapping.times import msg_times_of

REQUEST_OVERHEAD_BYTES = 450
"""Estimated memory of a pending message in addition to its data, measured in the gateway."""


class Producer:
    """Sends messages to all partitions of a topic.

    `ordered` sends messages with a key or a given partition, `any_partition` sends the others. `zone` is the time zone of
    `$msgTime$`; `send` waits while `max_pending_bytes` are sent and not stored yet.
    """

    def __init__(
        self,
        ordered: PartitionSender,
        any_partition: LoadBalancingSender,
        *,
        zone: tzinfo,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self._home = HomeLoop(f"the producer of topic {ordered.topic!r}")
        self._ordered, self._any_partition, self._zone = ordered, any_partition, zone
        self._window = SendWindow(max_pending_bytes)
        self._key_partitions = list(ordered.route.partitions)
        """The partitions for messages with keys. The list does not grow: more partitions would move keys to other partitions."""
        self._pending: set[asyncio.Future[SendResult]] = set()
        """Results of the messages that are sent and neither stored nor failed."""
        self._closed = False

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._ordered.topic

    @property
    def partitions(self) -> list[str]:
        """The names of the topic's partitions, `broker:partition`, for the `partition` argument of `send`."""
        return list(self._ordered.route.partitions)

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

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
        attributes: str | bytes | None = None,
        partition: str | None = None,
    ) -> SendReceipt:
        """Wait while `max_pending_bytes` are pending, then send a message and return when it is stored.

        key         chooses the partition by its CRC-32; messages with the same key stay in the order of the calls
        keys        index keys; stored as property `mqbridge.keys`, since TubeMQ has none
        msg_type    the type that consumers filter by
        properties  the pairs of the attribute string; commas and equals signs are escaped, reserved names are renamed
        event_time  ms since the epoch; stored as `mqbridge.event_time`, and without the seconds as `$msgTime$`
        deliver_at  ms since the epoch; only stored as a property: TubeMQ delivers at once
        attributes  the attribute string itself, byte for byte, instead of `properties`; may contain `$msgType$` and `$msgTime$`
        partition   the name of the partition to send to (see `partitions`); the key then does not matter

        A message whose response was lost is sent again, so it may be stored twice. Raises ClusterError, whose `failure` tells
        whether a retry may help, and MappingError for a message that TubeMQ cannot carry.
        """
        self._home.check()
        message = self._message(payload, keys, msg_type, properties, attributes)
        message.key, message.event_time, message.deliver_at = key, event_time, deliver_at
        if attributes is not None and event_time is None:
            message.event_time = system_fields(message.properties, msg_times_of(self._zone))[1]
        data, flag, type_field, time_field = encode(message, stamp=None, zone=self._zone)  # a program's message has no origin
        name = self._partition_of(key, partition)
        if self._closed:
            raise ClusterError(f"the producer of topic {self.topic!r} is closed", Failure.FATAL)
        size = len(data) + REQUEST_OVERHEAD_BYTES
        message_number = await self._window.enter(size, name)
        result: asyncio.Future[SendResult] = self._ordered.loop.create_future()

        def on_done(outcome: SendResult | MqbridgeError) -> None:
            self._pending.discard(result)
            if name is not None and isinstance(outcome, MqbridgeError) and failure_of(outcome) is not Failure.REFUSED:
                self._window.fail_waiting(outcome, name)  # they are later messages of the partition, which keeps the order
            self._window.leave(message_number, size)
            settle_future(result, outcome)

        self._pending.add(result)
        if name is None:
            submitted = self._any_partition.submit(data, flag, type_field, time_field, done=on_done)
            stored = await result
            assert submitted.ref is not None  # noqa: S101 - it was sent to a partition
            name = submitted.ref.name
        else:
            caller = Caller(owner=None, stream=None, told_by=(result,))
            self._ordered.submit(name, data, flag, type_field, time_field, done=on_done, caller=caller)
            stored = await result
        return SendReceipt(self.topic, name, position=(), message_id=str(stored.message_id))

    async def flush(self) -> None:
        """Wait until all messages passed to `send` so far are stored or have failed."""
        self._home.check()
        await self._window.drain()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for pending messages at most `timeout` seconds, then close; those still pending fail with SenderClosed."""
        if self._closed or self._home.is_over():
            return
        self._closed = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._window.drain()
        finally:
            error = SenderClosed(f"the producer of topic {self.topic!r} was closed before this message was stored")
            self._window.abort(error)
            for result in list(self._pending):
                settle_future(result, error)
            await self._ordered.close(timeout=0.0)
            await self._any_partition.close(timeout=0.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _message(
        self,
        payload: bytes | None,
        keys: Sequence[str],
        msg_type: str | None,
        properties: Properties,
        attributes: str | bytes | None,
    ) -> Message:
        """Return the message of a `send` call, made from `properties` or from `attributes`. Raises MappingError."""
        if attributes is None:
            pairs = tuple(properties.items() if isinstance(properties, Mapping) else properties)
            return Message(payload, pairs, keys=tuple(keys), msg_type=msg_type)
        text = attributes.encode() if isinstance(attributes, str) else attributes
        pairs = parse_pairs(text)
        if properties:
            raise MappingError(
                "a message takes either properties or attributes, not both: the attribute string contains the properties"
            )
        type_in_text = system_fields(pairs, msg_times_of(self._zone))[0]
        if msg_type is not None and msg_type != type_in_text:
            raise MappingError(f"msg_type is {msg_type!r}, but $msgType$ in the attribute string is {type_in_text!r}")
        return Message(payload, pairs, keys=tuple(keys), msg_type=type_in_text, attributes=text)

    def _partition_of(self, key: str | bytes | None, partition: str | None) -> str | None:
        """Return the name of the partition to send a message to; None for any partition. Raises ClusterError (REFUSED)."""
        if partition is not None:
            if partition not in self._ordered.route.partitions:
                names = ", ".join(self._ordered.route.partitions)
                raise ClusterError(f"topic {self.topic!r} has no partition {partition!r}; it has {names}", Failure.REFUSED)
            return partition
        if key is None:
            return None
        key_partitions = self._key_partitions
        return key_partitions[crc32(key.encode() if isinstance(key, str) else key) % len(key_partitions)]
