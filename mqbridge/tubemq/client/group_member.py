"""Data in every call of a group's member, whoever balances the group: its identity, filters, tokens and flow control."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count

from mqbridge.tubemq.client.flow_control import FlowControl
from mqbridge.tubemq.client.master import Masters, new_client_id, with_retries
from mqbridge.tubemq.wire.pb.master_pb2 import MasterAuthorizedInfo
from mqbridge.tubemq.wire.string_formats import PartitionRef, format_condition

UNSET = -2
FRESH_ID = "-run"
"""Separates a member's client id from the number of a fresh one; letters, digits, dots and dashes are allowed in client ids."""


class MemberIdentity:
    """Identity of one consumer at Master and Brokers. `priority` (qryPriorityId, 101 to 303) overrides the Master's setting."""

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, frozenset[str]],
        *,
        priority: int | None = None,
    ) -> None:
        self.masters = masters
        self.group = group
        self.topics = list(topics)
        self.filters = filters
        self.client_id = ""
        self.host = ""
        self._fresh_ids = count(1)
        self.flow = FlowControl()
        self.priority = UNSET if priority is None else priority
        """qryPriorityId: selects the Broker's stores that the group may read."""
        self._priority_is_ours = priority is not None

    async def identify(self) -> None:
        """Determine our address and make a client id, once. Raises ClusterError after five tries."""
        self.host = await with_retries("connecting to the Master", self.masters.local_host)
        self.client_id = new_client_id(self.host, self.group)

    def fresh_client_id(self) -> str:
        """Return a client id that no Broker has seen, derived from the member's. It is never sent to the Master."""
        return f"{self.client_id}{FRESH_ID}{next(self._fresh_ids)}"

    def conditions(self) -> list[str]:
        """Return the filters in the form of requests to the Master."""
        return [format_condition(topic, types) for topic, types in sorted(self.filters.items()) if types]

    def types_of(self, topic: str) -> list[str]:
        """Return the filter of a topic in the form of requests to Brokers; empty for none."""
        return sorted(self.filters.get(topic, ()))

    def learn_priority(self, value: int) -> None:
        """Apply the Master's qryPriorityId, unless the member has one of its own."""
        if not self._priority_is_ours:
            self.priority = value

    def learn_token(self, info: MasterAuthorizedInfo) -> None:
        """Keep the tokens of a response."""
        self.masters.learn(info)


class GroupMember(MemberIdentity, ABC):
    """A member that registers with the Master, whoever balances the group."""

    @abstractmethod
    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join the group, holding `held` already when this is not the first time. Raises ClusterError."""

    @abstractmethod
    async def leave(self) -> None:
        """Tell the Master that this consumer leaves. Raises ClusterError."""
