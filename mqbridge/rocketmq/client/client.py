"""A client of one RocketMQ cluster, as applications make it: it hands out producers and what administers the cluster."""

from collections.abc import Sequence

from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.client.admin import Admin
from mqbridge.rocketmq.client.base_client import BaseClient, Timing
from mqbridge.rocketmq.client.credentials import Credentials
from mqbridge.rocketmq.client.group_admin import GroupAdmin
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.client.producer import MAX_MESSAGE_BYTES, ORDERED, Producer
from mqbridge.rocketmq.client.query import Query
from mqbridge.rocketmq.client.transactions import Check, TransactionProducer

__all__ = ["RocketmqClient", "Timing"]


class RocketmqClient(BaseClient):
    """See `BaseClient` for how it is made; `admin`, `positions`, `query` and `groups` ask its brokers."""

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        timing: Timing | None = None,
        instance: str | None = None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        connectivity: Connectivity | None = None,
    ) -> None:
        super().__init__(
            name_servers, timing=timing, instance=instance, tls=tls, credentials=credentials, connectivity=connectivity
        )
        self.admin, self.positions, self.query = Admin(self), Positions(self), Query(self)
        self.groups = GroupAdmin(self, self.admin, self.positions)

    def producer(
        self,
        group: str,
        topic: str,
        *,
        in_flight_per_queue: int = ORDERED,
        max_elapsed_s: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        fail_behind: bool = False,
    ) -> Producer:
        """A producer of a topic; see `Producer`. Raises ClusterError (FATAL) for names that cannot be."""
        return Producer(
            self,
            group,
            topic,
            in_flight_per_queue=in_flight_per_queue,
            max_elapsed_s=max_elapsed_s,
            max_message_bytes=max_message_bytes,
            fail_behind=fail_behind,
        )

    def transaction_producer(
        self, group: str, topic: str, check: Check, *, max_elapsed_s: float | None = None
    ) -> TransactionProducer:
        """A producer of transactional messages; `check` answers the brokers' questions. See `TransactionProducer`."""
        return TransactionProducer(self, group, topic, check, max_elapsed_s=max_elapsed_s)
