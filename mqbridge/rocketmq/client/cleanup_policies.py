"""Cleanup policies of topics, which do not change while a topic is read."""

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.admin import TopicHeader


class CleanupPolicies:
    """Caches the cleanup policy of each topic."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._compacted: dict[str, bool] = {}

    async def compacted(self, queue: Queue) -> bool:
        """Return True if the topic keeps only the newest message per key, so that missing offsets are normal.

        A broker that does not know the request has no such topics. Raises ClusterError, ProtocolError.
        """
        known = self._compacted.get(queue.topic)
        if known is None:
            try:
                answer = await self._brokers.ask(queue, Code.GET_TOPIC_CONFIG, TopicHeader(queue.topic).encode())
            except ServerRefused:
                known = False
            else:
                known = TopicConfig.decode(answer.body).attributes.get("cleanup.policy") == "COMPACTION"
            self._compacted[queue.topic] = known
        return known
