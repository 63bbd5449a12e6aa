"""The four RPC calls for one partition: register, get, commit, unregister.

`pack_reader`, `partition_registration` and `partition` interpret the responses.
"""

import contextlib
import logging
from collections.abc import Sequence
from enum import Enum

from mqbridge.errors import ClusterError, ProtocolError, RemoteProtocolError, ServerRefused, Unreachable
from mqbridge.native import compiled
from mqbridge.net.connectivity import retry_log_level
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import (
    CommitOffsetRequestC2B,
    CommitOffsetResponseB2C,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    RegisterRequestC2B,
    RegisterResponseB2C,
)
from mqbridge.tubemq.wire.stored_message import StoredMessage
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)


class Unregistered(Enum):
    """What became of a request to unregister.

    DONE       carried out, or refused because another consumer has the partition
    FORGOTTEN  the Broker did not know the registration: it has restarted, or the lease has expired
    UNKNOWN    no valid response: the request may still reach the Broker
    NOT_SENT   the Broker was unreachable, or refused the request: the registration stays until its lease expires
    """

    DONE = "done"
    FORGOTTEN = "forgotten"
    UNKNOWN = "unknown"
    NOT_SENT = "not sent"


class PartitionCalls:
    """The calls of one group member for one partition.

    All but `try_unregister` raise ClusterError if no response arrives, and ProtocolError for an invalid one.
    """

    def __init__(self, member: MemberIdentity, ref: PartitionRef, connection: ServerConnection) -> None:
        self._member = member
        self._ref = ref
        self._connection = connection
        # One object for all get requests, built once per partition, not per pack: `get` sets the two fields that change.
        self._get_request = GetMessageRequestC2B(
            clientId=member.client_id,
            groupName=member.group,
            topicName=ref.topic,
            partitionId=ref.partition,
            manualCommitOffset=False,
        )

    @property
    def client_id(self) -> str:
        """The client id in requests to this partition's Broker: the member's, or a fresh one that no earlier request contains."""
        return self._get_request.clientId

    @client_id.setter
    def client_id(self, value: str) -> None:
        self._get_request.clientId = value

    def __str__(self) -> str:
        return f"topic {self._ref.topic} partition {self._ref.name} for group {self._member.group}"

    async def connect(self) -> int:
        """Connect to the Broker if there is no connection, and return `connection_number`."""
        await self._connection.connect()
        return self.connection_number

    @property
    def connection_number(self) -> int:
        """Number of the TCP connection that is used now: between requests with the same number the Broker has not restarted."""
        return self._connection.number

    async def register(self, read_status: int, offset: int | None) -> RegisterResponseB2C:
        """Register at `offset`; if it is None, `read_status` says where to start: see `StartOffset` in `held_partitions`.

        Raises ServerRefused (410: another consumer holds the partition).
        """
        request = self._registration_request(rpc.OP_REGISTER, read_status)
        if offset is not None:
            request.currOffset = offset
        response = await self._connection.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)
        if not response.success:
            raise codes.refusal_error(f"registering {self}", response.errCode, response.errMsg)
        return response

    async def unregister(self, *, consumed: bool) -> int:
        """Unregister; with `consumed` this also confirms the last pack. Return the Broker's code: a refusal raises nothing."""
        request = self._registration_request(rpc.OP_UNREGISTER, 0 if consumed else 1)
        response = await self._connection.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)
        return codes.SUCCESS if response.success else response.errCode

    async def try_unregister(self, *, consumed: bool) -> Unregistered:
        """Like `unregister`, but log errors instead of raising them: a lease that is not renewed expires anyway."""
        try:
            code = await self.unregister(consumed=consumed)
        except (ClusterError, ProtocolError) as error:
            message = "unregistering %s failed; its lease at the Broker will expire: %s"
            log.log(retry_log_level(error, logging.INFO), message, self, error)
            return Unregistered.NOT_SENT if isinstance(error, (ServerRefused, Unreachable)) else Unregistered.UNKNOWN
        if code in (codes.SUCCESS, codes.DUPLICATE_PARTITION):
            return Unregistered.DONE
        log.log(
            logging.INFO if code == codes.NO_NODE else logging.WARNING,
            "unregistering %s was refused with code %d; its lease at the Broker has ended or will expire",
            self,
            code,
        )
        return Unregistered.FORGOTTEN if code == codes.NO_NODE else Unregistered.NOT_SENT

    async def get(self, *, consumed: bool) -> tuple[GetMessageResponseB2C, Sequence[StoredMessage], int]:
        """Send a get; `consumed` confirms the previous pack. Return the response, its messages and its size in bytes."""
        request = self._get_request
        request.lastPackConsumed = consumed
        request.escFlowCtrl = self._member.flow.has_group_rules  # True: the Broker does not apply its own flow control
        data = await self._connection.request(rpc.READ, rpc.GET, request.SerializeToString())
        return *parse_get_response(data), len(data)

    async def commit(self, *, consumed: bool) -> tuple[int, int]:
        """Confirm the last pack, or without `consumed` have it delivered again.

        Return the offset at which the next get reads, and the end of the store. Raises ServerRefused.
        """
        request = CommitOffsetRequestC2B(
            clientId=self._get_request.clientId,
            groupName=self._get_request.groupName,
            topicName=self._ref.topic,
            partitionId=self._ref.partition,
            lastPackConsumed=consumed,
        )
        response = await self._connection.call(rpc.READ, rpc.COMMIT, request, CommitOffsetResponseB2C)
        if not response.success:
            raise codes.refusal_error(f"a commit for {self}", response.errCode, response.errMsg)
        return response.currOffset, response.maxOffset

    def _registration_request(self, operation: int, read_status: int) -> RegisterRequestC2B:
        """Make a request to register or unregister, depending on `operation`.

        When registering, readStatus is a `StartOffset`. When unregistering, 0 means that the last pack was consumed, and 1 that
        it was not.
        """
        member = self._member
        return RegisterRequestC2B(
            opType=operation,
            clientId=self._get_request.clientId,
            groupName=member.group,
            topicName=self._ref.topic,
            partitionId=self._ref.partition,
            readStatus=read_status,
            filterCondStr=member.filter_types(self._ref.topic),
            qryPriorityId=member.priority,
            authInfo=member.masters.broker_auth,
        )


def parse_get_response(data: bytes) -> tuple[GetMessageResponseB2C, Sequence[StoredMessage]]:
    """Parse a response to a get; return it with its messages. Raises RemoteProtocolError.

    The compiled module extracts the messages without creating protobuf objects. Take the messages from the second value only: if
    the compiled module has extracted them, the response has none.
    """
    # The compiled module returns None if only protobuf can tell whether the response is valid.
    if compiled is not None and (split := compiled.tubemq_split_answer(data)) is not None:
        messages, other_fields = split
        with contextlib.suppress(RemoteProtocolError):  # the full parse below raises the error again
            return rpc.parse(GetMessageResponseB2C, other_fields), messages
    response = rpc.parse(GetMessageResponseB2C, data)
    return response, response.messages
