"""Heartbeats to Brokers: they renew the leases of held partitions, and their responses report lost partitions.

Each Broker gets its own heartbeats, so a silent Broker does not delay the heartbeats to the others. On a slow link responses may
be late, so the next heartbeat does not wait for the previous response.

A lost connection may mean that the Broker has restarted, and has lost the registrations. A partition whose pack is out sends no
other request, so a heartbeat is sent at once, and repeated every RECONNECT_S until one is answered.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import HeartBeatRequestC2B, HeartBeatResponseB2C
from mqbridge.tubemq.wire.string_formats import Broker, PartitionKey, PartitionRef, parse_failure

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
"""Interval between heartbeats to a Broker whose connection was lost."""

Generations = dict[PartitionKey, tuple[HeldPartition, int]]
"""The partitions of one heartbeat, each with its generation (number of registrations so far) at the time of sending."""


class BrokerHeartbeats:
    """Sends the heartbeats of one member to all Brokers of its held partitions.

    `held` returns the partitions held now; `interval_s` is the time between two heartbeats.
    """

    def __init__(
        self,
        member: MemberIdentity,
        held: Callable[[], Iterable[HeldPartition]],
        connection_for: Callable[[PartitionRef], ServerConnection],
        interval_s: float,
    ) -> None:
        self.interval_s = interval_s
        self._member, self._held, self._connection_for = member, held, connection_for
        self._pending: set[asyncio.Task[None]] = set()
        self._reconnecting: set[Broker] = set()
        """Brokers with a heartbeat in progress that was sent because the connection was lost."""

    async def run(self) -> None:
        """Send heartbeats every `interval_s` seconds until cancelled, and at once to a Broker whose connection was lost."""
        loop = asyncio.get_running_loop()
        next_at = loop.time() + self.interval_s
        try:
            while True:
                await asyncio.sleep(min(RECONNECT_S, max(0.0, next_at - loop.time())))
                if loop.time() >= next_at:
                    next_at = loop.time() + self.interval_s
                    self.send()
                else:
                    self.send(only_disconnected=True)
        finally:
            await cancel(*self._pending)

    def send(self, *, only_disconnected: bool = False) -> None:
        """Send one heartbeat for each client id at each Broker, without waiting for the responses.

        After an abandoned request, a partition has a client id of its own. `only_disconnected` leaves out the Brokers to which
        there is a connection.
        """
        groups: dict[tuple[Broker, str], list[HeldPartition]] = {}
        for partition in self._held():
            if partition.state.is_registered and not (only_disconnected and self._is_connected(partition)):
                groups.setdefault((partition.ref.broker, partition.client_id), []).append(partition)
        for (broker, client_id), partitions in groups.items():
            # If a partition registers again before the response arrives, the response is about its old registration.
            generations = {partition.ref.key: (partition, partition.state.generation) for partition in partitions}
            heartbeat = self._send_to_broker(broker, self._request(client_id, partitions), generations)
            task = spawn(heartbeat, f"tubemq heartbeat to {broker}")
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            if only_disconnected:
                self._reconnecting.add(broker)
                task.add_done_callback(partial(self._on_reconnected, broker))

    def _is_connected(self, partition: HeldPartition) -> bool:
        """Return True if there is a connection to the partition's Broker, or a heartbeat is making one."""
        return self._connection_for(partition.ref).alive or partition.ref.broker in self._reconnecting

    def _on_reconnected(self, broker: Broker, _: object) -> None:
        self._reconnecting.discard(broker)

    def _request(self, client_id: str, partitions: list[HeldPartition]) -> HeartBeatRequestC2B:
        member = self._member
        return HeartBeatRequestC2B(
            clientId=client_id,
            groupName=member.group,
            readStatus=0,  # required by the protocol, but Brokers ignore it in heartbeats
            partitionInfo=[str(partition.ref) for partition in partitions],
            qryPriorityId=member.priority,
            authInfo=member.masters.broker_auth,
        )

    async def _send_to_broker(self, broker: Broker, request: HeartBeatRequestC2B, generations: Generations) -> None:
        """Renew the leases that one client id has at one Broker, and tell each partition whose lease the Broker does not find.

        A heartbeat that fails is not repeated.
        """
        any_partition, _ = next(iter(generations.values()))  # all are at this Broker
        connection = self._connection_for(any_partition.ref)
        try:
            response = await connection.call(rpc.READ, rpc.PARTITION_HEARTBEAT, request, HeartBeatResponseB2C)
            failures = [parse_failure(text) for text in response.failureInfo]
        except (ClusterError, ProtocolError) as error:
            log.log(
                retry_log_level(error, logging.WARNING),
                "a heartbeat of group %s to Broker %s failed, sending the next one in %g s: %s",
                self._member.group,
                broker,
                self.interval_s,
                error,
            )
            return
        if not response.success:
            text = "Broker %s refused a heartbeat of group %s with code %d, sending the next one in %g s: %s"
            log.warning(text, broker, self._member.group, response.errCode, self.interval_s, response.errMsg)
        for code, ref in failures:
            if ref.key in generations:
                partition, generation = generations[ref.key]
                partition.on_heartbeat_failure(code, generation)
