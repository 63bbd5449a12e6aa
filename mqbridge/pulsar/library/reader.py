"""Reads topics without a subscription: nothing is acknowledged, and the broker keeps no position."""

from datetime import datetime
from typing import Self

from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Position
from mqbridge.pulsar.library.consumer import Consumer


class Reader:
    """Opened by `PulsarClient.reader`. Messages come in order per partition."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._consumer.closed

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds. Raises like `Consumer.receive`."""
        return await self._consumer.receive(timeout)

    async def has_more(self) -> bool:
        """Return True if there are messages beyond those received. Raises ClusterError."""
        return await self._consumer.has_more()

    async def last_positions(self) -> dict[str, Position]:
        """Return the newest position of each partition, by its full name; () if it is empty. Raises ClusterError."""
        return await self._consumer.last_positions()

    def schema_version(self, message: ReceivedMessage) -> bytes:
        """Return the version of the schema that the message was sent with, b"" if none; see `PulsarClient.schema`."""
        return self._consumer.schema_version(message)

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Continue at an end or a time in every partition, or at a message in its partition. Raises ClusterError."""
        await self._consumer.seek(to)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close it; iteration then ends."""
        await self._consumer.close(timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        return await anext(self._consumer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
