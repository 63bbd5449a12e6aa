"""Reads topics without a subscription: nothing is acknowledged, and the broker stores no position."""

from datetime import datetime
from typing import Self

from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Position
from mqbridge.pulsar.library.consumer import Consumer


class Reader:
    """Reader of topics, opened by `PulsarClient.reader`. The messages of each partition are received in order."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._consumer.closed

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Wait at most `timeout` seconds (None: for ever) for the next message and return it.

        Raises TimeoutError. Raises ClusterError if the reader is closed, and once for each partition that has failed.
        """
        return await self._consumer.receive(timeout)

    async def has_more(self) -> bool:
        """Return True if the topics have messages that were not received yet. Raises ClusterError."""
        return await self._consumer.has_more()

    async def last_positions(self) -> dict[str, Position]:
        """Return the position of the newest message by full partition name; () for an empty one. Raises ClusterError."""
        return await self._consumer.last_positions()

    def schema_version(self, message: ReceivedMessage) -> bytes:
        """Return the schema version of the message, b"" without a schema; see `PulsarClient.schema`."""
        return self._consumer.schema_version(message)

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Continue at "earliest", at "latest" or at a publish time in every partition, or at a message in the partition it is in.

        Raises ClusterError.
        """
        await self._consumer.seek(to)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close the reader within `timeout` seconds; a running iteration over it ends."""
        await self._consumer.close(timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        return await anext(self._consumer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
