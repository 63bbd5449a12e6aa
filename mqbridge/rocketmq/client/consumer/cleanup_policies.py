"""Cleanup policies of topics. They are cached, because the policy of a topic does not change while it is read."""

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.admin import TopicHeader


class CleanupPolicies:
    """Cache of the cleanup policy of each topic."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._compacted: dict[str, bool] = {}
        """True or False for each topic whose policy was queried."""

    def forget(self, topic: str) -> None:
        """Query the policy of this topic again: it was deleted, and may be created with another one."""
        self._compacted.pop(topic, None)

    async def is_compacted(self, queue: Queue) -> bool:
        """Return True if the topic keeps only the newest message per key, so that missing offsets are normal.

        Return False also if the broker refuses the request, as one that is too old for such topics does. Raises ClusterError,
        ProtocolError.
        """
        compacted = self._compacted.get(queue.topic)
        if compacted is None:
            try:
                response = await self._brokers.request(queue, Code.GET_TOPIC_CONFIG, TopicHeader(queue.topic).encode())
            except ServerRefused:
                compacted = False
            else:
                compacted = TopicConfig.decode(response.body).is_compacted
            self._compacted[queue.topic] = compacted
        return compacted
