"""Client of one cluster: administration, positions, groups, and producers of encoded messages."""

from collections.abc import Sequence

from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.client.admin.admin import Admin
from mqbridge.rocketmq.client.admin.group_admin import GroupAdmin
from mqbridge.rocketmq.client.admin.positions import Positions
from mqbridge.rocketmq.client.connection.base_client import BaseClient, Timing
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.connection.credentials import Credentials
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.consumer.cleanup_policies import CleanupPolicies
from mqbridge.rocketmq.client.producer.queue_producer import ORDERED, QueueProducer
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES

__all__ = ["ClusterClient", "Timing"]


class ClusterClient(BaseClient):
    """A `BaseClient` with `admin`, `positions`, `policies` and `groups`, which query the brokers, and with producers.

    The parameters are those of `BaseClient`; `instance`, for example, is the part of the client id after the address.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        timing: Timing | None = None,
        instance: str | None = None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        connectivity: Connectivity | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        super().__init__(
            name_servers,
            timing=timing,
            instance=instance,
            tls=tls,
            credentials=credentials,
            connectivity=connectivity,
            addresses=addresses,
        )
        self.admin, self.positions = Admin(self), Positions(self)
        self.policies = CleanupPolicies(Brokers(self))
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
        require_replica: bool = False,
        route: TopicRoute | None = None,
    ) -> QueueProducer:
        """Return a producer for a topic; see `QueueProducer`. Raises ClusterError (FATAL) for invalid names.

        `in_flight_per_queue` limits the requests without a response; ORDERED, which is 1, keeps the order. After `max_elapsed_s`
        without success, the sends to a queue fail; None: they are retried forever. `fail_behind`: if a send fails for another
        reason than REFUSED, the later sends to its queue fail, too. `require_replica`: messages stored without the flush or
        replica that a broker's settings demand are sent again. `route`: the topic's route, if it is known.
        """
        return QueueProducer(
            self,
            group,
            topic,
            in_flight_per_queue=in_flight_per_queue,
            max_elapsed_s=max_elapsed_s,
            max_message_bytes=max_message_bytes,
            fail_behind=fail_behind,
            require_replica=require_replica,
            route=route,
        )
