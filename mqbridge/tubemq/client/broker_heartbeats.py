"""Heartbeats to Brokers keep the leases of the partitions that a member holds, and say which of them are lost.

Each Broker hears of us on its own: one that does not answer delays nobody else's heartbeat. On a slow link answers may be a
while behind, so the next heartbeat does not wait for them either.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import HeartBeatRequestC2B, HeartBeatResponseB2C
from mqbridge.tubemq.wire.text import Broker, Key, PartitionRef, parse_failure

log = logging.getLogger(__name__)

Runs = dict[Key, tuple[HeldPartition, int]]
"""What a heartbeat was about: the partitions, each in the run in which it was sent."""


class BrokerHeartbeats:
    """The heartbeats of one member to all Brokers that it holds partitions at."""

    def __init__(
        self,
        member: Member,
        held: Callable[[], Iterable[HeldPartition]],
        session_for: Callable[[PartitionRef], Session],
        interval_s: float,
    ) -> None:
        self.interval_s = interval_s
        self._member, self._held, self._session_for = member, held, session_for
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send them until cancelled."""
        try:
            while True:
                await asyncio.sleep(self.interval_s)
                self.send()
        finally:
            await cancel(*self._under_way)

    def send(self) -> None:
        """One heartbeat for each client id at each Broker."""
        groups: dict[tuple[Broker, str], list[HeldPartition]] = {}
        for partition in self._held():
            if partition.state.is_registered:
                groups.setdefault((partition.ref.broker, partition.client_id), []).append(partition)
        for (broker, client_id), partitions in groups.items():
            # Client ids and runs are read in the same turn: an answer about an id is not taken for one about the next.
            runs = {partition.ref.key: (partition, partition.state.run) for partition in partitions}
            task = spawn(self._beat(broker, self._request(client_id, partitions), runs), f"tubemq heartbeat to {broker}")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def _request(self, client_id: str, partitions: list[HeldPartition]) -> HeartBeatRequestC2B:
        member = self._member
        return HeartBeatRequestC2B(
            clientId=client_id,
            groupName=member.group,
            readStatus=0,
            partitionInfo=[str(partition.ref) for partition in partitions],
            qryPriorityId=member.priority,
            authInfo=member.masters.authorized,
        )

    async def _beat(self, broker: Broker, request: HeartBeatRequestC2B, runs: Runs) -> None:
        """Keep the leases of what one client id holds at one Broker, and hear what is lost."""
        session = self._session_for(next(iter(runs.values()))[0].ref)
        try:
            answer = await session.call(rpc.READ, rpc.PARTITION_HEARTBEAT, request, HeartBeatResponseB2C)
            failures = [parse_failure(text) for text in answer.failureInfo]
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.WARNING), "a heartbeat to Broker %s failed: %s", broker, error)
            return
        if not answer.success:
            log.warning("a heartbeat to Broker %s was refused with %d: %s", broker, answer.errCode, answer.errMsg)
        for code, ref in failures:
            if ref.key in runs:
                partition, run = runs[ref.key]
                partition.heartbeat_failed(code, run)
