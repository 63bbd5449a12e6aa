"""Requests of a consumer about its topic and subscription: cursor, last message, seek, unsubscribe, statistics."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mqbridge.errors import Failure, RequestTimeout, ServerRefused
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.wire import client_commands, codes, ids
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand


class ConsumerStats(NamedTuple):
    """The broker's statistics of a consumer. Values named `rate` or `out` are averages per second."""

    name: str
    type: str
    """Subscription type, by its name at the broker."""
    address: str
    """This client's socket address, as the broker sees it."""
    connected_since: str
    """Time as text, in the broker's format."""
    available_permits: int
    """Number of messages that the broker may send before the next FLOW."""
    unacked_messages: int
    """Number of messages delivered to this consumer and not acknowledged."""
    blocked: bool
    """True if the broker has stopped delivery because too many messages are unacknowledged."""
    backlog: int
    """Number of messages of the subscription that are not acknowledged."""
    rate_out: float
    """Messages delivered."""
    bytes_out: float
    """Bytes delivered."""
    rate_redelivered: float
    """Messages redelivered."""
    rate_expired: float
    """Messages of the subscription that expired."""


class ConsumerRequests:
    """Requests of one consumer. All methods raise ClusterError.

    The callback `connection` returns the consumer's current connection, or raises ClusterError.
    """

    def __init__(self, consumer_id: int, topic: str, connection: Callable[[], Connection], timeout_s: float) -> None:
        self._id, self._topic = consumer_id, topic
        self._connection, self._timeout_s = connection, timeout_s

    async def cursor(self, connection: Connection, is_durable: bool) -> EntryId | None:
        """Return the subscription's cursor: the last of the entries acknowledged without a gap; None if none or unknown.

        For a reader (`is_durable` is False) without a cursor, it is the topic's newest message, after which the reader starts.
        The request uses the given connection, because the registration is still in progress. Raises ConnectionLost or
        RequestTimeout. A temporary refusal raises RequestTimeout too, after which the consumer is closed at the broker and
        subscribes again.
        """
        try:
            response: pb.CommandGetLastMessageIdResponse = await connection.request(
                lambda request_id: client_commands.get_last_message_id(request_id, self._id),
                BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
                f"the cursor of {self._topic}",
                self._timeout_s,
            )
        except ServerRefused as error:
            if error.failure in (Failure.FATAL, Failure.REFUSED):
                return None
            raise RequestTimeout(
                f"the broker did not return the subscription's cursor in topic {self._topic}: {error}"
            ) from error
        has_cursor = response.HasField("consumer_mark_delete_position")
        cursor = ids.entry_id(response.consumer_mark_delete_position) if has_cursor else ids.EARLIEST
        if cursor > ids.EARLIEST:
            return cursor
        return None if is_durable else ids.entry_id(response.last_message_id)

    async def last_message_id(self) -> pb.CommandGetLastMessageIdResponse:
        """Return the broker's response with the newest message of the topic and the cursor of the subscription."""
        response: pb.CommandGetLastMessageIdResponse = await self._request(
            lambda request_id: client_commands.get_last_message_id(request_id, self._id),
            BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
            "the last message id",
        )
        return response

    async def seek(self, entry: EntryId | None, publish_time: int | None) -> None:
        """Set the cursor of the subscription to an entry, or to a publish time (ms since the epoch) if `entry` is None."""
        await self._request(
            lambda request_id: client_commands.seek(request_id, self._id, to=entry, publish_time=publish_time),
            BaseCommand.SUCCESS,
            "SEEK",
        )

    async def unsubscribe(self, force: bool) -> None:
        """Delete the subscription; with `force` also if other consumers are connected to it."""
        await self._request(
            lambda request_id: client_commands.unsubscribe(request_id, self._id, force), BaseCommand.SUCCESS, "UNSUBSCRIBE"
        )

    async def stats(self) -> ConsumerStats:
        """Return the broker's statistics of this consumer."""
        stats: pb.CommandConsumerStatsResponse = await self._request(
            lambda request_id: client_commands.consumer_stats(request_id, self._id),
            BaseCommand.CONSUMER_STATS_RESPONSE,
            "the statistics of the consumer",
        )
        if stats.HasField("error_code"):
            raise codes.refusal_error(
                stats.error_code, stats.error_message, f"asking for the statistics of a consumer of {self._topic}"
            )
        return ConsumerStats(
            stats.consumerName,
            stats.type,
            stats.address,
            stats.connectedSince,
            stats.availablePermits,
            stats.unackedMessages,
            stats.blockedConsumerOnUnackedMsgs,
            stats.msgBacklog,
            stats.msgRateOut,
            stats.msgThroughputOut,
            stats.msgRateRedeliver,
            stats.msgRateExpired,
        )

    async def _request(self, make_frame: Callable[[int], bytes], response_type: int, what: str) -> Any:
        """Send a request over the current connection; return the body of the response, see `Connection.request`."""
        return await self._connection().request(make_frame, response_type, f"{what} of {self._topic}", self._timeout_s)
