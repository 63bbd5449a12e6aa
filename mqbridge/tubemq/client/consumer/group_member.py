"""Data for the requests of a group member to Master and Brokers: its identity, filters, tokens and flow control rules."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count

from mqbridge.tubemq.client.connection.master import Masters, call_with_retries, new_client_id
from mqbridge.tubemq.client.consumer.flow_control import FlowControl
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.master_pb2 import CloseRequestC2M, CloseResponseM2C
from mqbridge.tubemq.wire.string_formats import PartitionRef, format_condition

UNSET = -2
"""Value of numeric request fields that are not set, such as qryPriorityId without a priority of our own."""
FRESH_ID_SEPARATOR = "-run"
"""Stands between the member's client id and a number in a fresh client id. Client ids allow letters, digits, dots and dashes."""


class MemberIdentity:
    """Identity of one consumer for Master and Brokers.

    `priority` overrides the qryPriorityId that the Master sends; with None, the Master's value is used.
    `filters` maps topics to the message types that are read; topics without types are read without a filter. `name` is a part of
    the client id, for operators; it need not be unique.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, frozenset[str]],
        *,
        priority: int | None = None,
        name: str | None = None,
    ) -> None:
        self.masters = masters
        self.group = group
        self.topics = list(topics)
        self.filters = filters
        self._name = name
        self.client_id = ""
        self.host = ""
        """Our IPv4 address, for requests to the Master. It and the client id are set by `identify`."""
        self._fresh_ids = count(1)
        self.flow = FlowControl()
        """The rules of administrators for how long a partition waits before its next get."""
        self.priority = UNSET if priority is None else priority
        """qryPriorityId: the stores of a Broker (file, memory) to read, see `PackConsumer`; UNSET until the Master sends it."""
        self._has_own_priority = priority is not None

    async def identify(self) -> None:
        """Determine our address and create the client id; to be called once. Raises ClusterError after five attempts."""
        self.host = await call_with_retries("connecting to the Master", self.masters.local_host)
        self.client_id = new_client_id(self.host, self.group, self._name)

    def fresh_client_id(self) -> str:
        """Return a new client id, with which a partition is registered again at its Broker after requests were abandoned.

        The Broker then refuses late requests with the old id. The Master never gets this id.
        """
        return f"{self.client_id}{FRESH_ID_SEPARATOR}{next(self._fresh_ids)}"

    def conditions(self) -> list[str]:
        """Return the filters in the format of requests to the Master."""
        return [format_condition(topic, types) for topic, types in sorted(self.filters.items()) if types]

    def filter_types(self, topic: str) -> list[str]:
        """Return the filter of a topic in the format of requests to Brokers; empty if the topic has no filter."""
        return sorted(self.filters.get(topic, ()))

    def apply_priority(self, value: int) -> None:
        """Apply the qryPriorityId that the Master sent, unless this member was created with its own."""
        if not self._has_own_priority:
            self.priority = value


class GroupMember(MemberIdentity, ABC):
    """A member that registers with the Master."""

    @abstractmethod
    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join the group. `held` are the partitions that a rejoining member holds, empty for a new one. Raises ClusterError."""

    async def leave(self) -> None:
        """Leave the group: unregister at the Master. Raises ClusterError.

        A refusal is ignored: the Master removes members that send no heartbeats.
        """
        request = CloseRequestC2M(clientId=self.client_id, groupName=self.group, authInfo=await self.masters.auth_info())
        await self.masters.call(rpc.CONSUMER_CLOSE, request, CloseResponseM2C)
