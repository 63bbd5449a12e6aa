"""What every call of a group's member says, whoever balances the group: who it is, its filters, its tokens, its flow control."""

from collections.abc import Mapping, Sequence
from itertools import count

from mqbridge.tubemq.client.flow import FlowControl
from mqbridge.tubemq.client.master import Masters, client_id, retried
from mqbridge.tubemq.wire.pb.master_pb2 import MasterAuthorizedInfo
from mqbridge.tubemq.wire.text import format_condition

UNSET = -2
FRESH_ID = "-run"
"""Between a member's client id and the number of a run of one of its partitions: letters, digits, dots and dashes are allowed."""


class Member:
    """One consumer as Master and Brokers know it. `priority` (qryPriorityId, 101 to 303) wins over what the Master says."""

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
        """qryPriorityId: which of a Broker's stores the group may read."""
        self._priority_is_ours = priority is not None

    async def identify(self) -> None:
        """Find out our address and make a client id, once. Raises ClusterError after five tries."""
        self.host = await retried("connecting to the Master", self.masters.local_host)
        self.client_id = client_id(self.host, self.group)

    def fresh_client_id(self) -> str:
        """One for a Broker that has never seen it, in which ours can be recognized. The Master never hears of it."""
        return f"{self.client_id}{FRESH_ID}{next(self._fresh_ids)}"

    def conditions(self) -> list[str]:
        """The filters as the Master is told them."""
        return [format_condition(topic, types) for topic, types in sorted(self.filters.items()) if types]

    def types_of(self, topic: str) -> list[str]:
        """The filter of a topic as its Brokers are told it; empty for none."""
        return sorted(self.filters.get(topic, ()))

    def learn_priority(self, value: int) -> None:
        """The Master's qryPriorityId."""
        if not self._priority_is_ours:
            self.priority = value

    def learn_token(self, info: MasterAuthorizedInfo) -> None:
        """The tokens of an answer."""
        self.masters.learn(info)
