"""What can be asked about one consumer's topic and subscription, besides messages: each a command and its answer."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mqbridge.errors import Failure, RequestTimeout, ServerRefused
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.wire import codes, commands, ids
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand


class ConsumerStats(NamedTuple):
    """A consumer as its broker sees it; rates are per second."""

    name: str
    type: str
    address: str
    connected_since: str
    available_permits: int
    unacked_messages: int
    blocked: bool
    """Too many messages are not acknowledged: nothing is delivered."""
    backlog: int
    rate_out: float
    bytes_out: float
    rate_redelivered: float
    rate_expired: float


class ConsumerRequests:
    """Asks for the consumer of this id; `session` gives its connection or raises ClusterError. All calls raise that."""

    def __init__(self, consumer_id: int, topic: str, session: Callable[[], Connection], timeout_s: float) -> None:
        self._id, self._topic, self._session, self._timeout_s = consumer_id, topic, session, timeout_s

    async def cursor(self, connection: Connection, is_durable: bool) -> EntryId | None:
        """The last entry that counts as acknowledged, asked over this connection; None where the broker does not say.

        A cursor of a reader that has seen nothing yet and is told nowhere is behind the newest message. Raises ConnectionLost or
        RequestTimeout.
        """
        try:
            answer: pb.CommandGetLastMessageIdResponse = await connection.request(
                lambda request_id: commands.get_last_message_id(request_id, self._id),
                BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
                f"the cursor of {self._topic}",
                self._timeout_s,
            )
        except ServerRefused as error:
            if error.failure in (Failure.FATAL, Failure.REFUSED):
                return None
            raise RequestTimeout(f"the cursor of {self._topic} is not known: {error}") from error
        told = answer.HasField("consumer_mark_delete_position")
        mark = ids.entry_id(answer.consumer_mark_delete_position) if told else ids.EARLIEST
        if mark > ids.EARLIEST:
            return mark
        return None if is_durable else ids.entry_id(answer.last_message_id)

    async def last(self) -> pb.CommandGetLastMessageIdResponse:
        """The newest message of the topic."""
        answer: pb.CommandGetLastMessageIdResponse = await self._ask(
            lambda request_id: commands.get_last_message_id(request_id, self._id),
            BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
            "the last message id",
        )
        return answer

    async def seek(self, entry: EntryId | None, publish_time: int | None) -> None:
        """Set the position of the subscription."""
        await self._ask(
            lambda request_id: commands.seek(request_id, self._id, to=entry, publish_time=publish_time),
            BaseCommand.SUCCESS,
            "SEEK",
        )

    async def unsubscribe(self, force: bool) -> None:
        """Delete the subscription."""
        await self._ask(lambda request_id: commands.unsubscribe(request_id, self._id, force), BaseCommand.SUCCESS, "UNSUBSCRIBE")

    async def stats(self) -> ConsumerStats:
        """What the broker counts."""
        said: pb.CommandConsumerStatsResponse = await self._ask(
            lambda request_id: commands.consumer_stats(request_id, self._id),
            BaseCommand.CONSUMER_STATS_RESPONSE,
            "the statistics of the consumer",
        )
        if said.HasField("error_code"):
            raise codes.refused(said.error_code, said.error_message, f"asking for the statistics of a consumer of {self._topic}")
        return ConsumerStats(
            said.consumerName,
            said.type,
            said.address,
            said.connectedSince,
            said.availablePermits,
            said.unackedMessages,
            said.blockedConsumerOnUnackedMsgs,
            said.msgBacklog,
            said.msgRateOut,
            said.msgThroughputOut,
            said.msgRateRedeliver,
            said.msgRateExpired,
        )

    async def _ask(self, make: Callable[[int], bytes], expect: int, what: str) -> Any:
        return await self._session().request(make, expect, f"{what} of {self._topic}", self._timeout_s)
