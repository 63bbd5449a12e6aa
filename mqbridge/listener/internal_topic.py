"""A topic of one partition that all gateways of a listener keep for themselves in the backing.

Everyone may append to it; one of those that follow it at a time reads it.
"""

import asyncio
import logging
from collections.abc import Sequence

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import InboundSpec, Sharing, Start
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import ClusterError, GapError, MqbridgeError
from mqbridge.groups.membership import RunLane, SharedMembership
from mqbridge.listener.limits import LANE_BYTES, InFlightBytes, limited
from mqbridge.listener.parking import RELEASE_WAIT_S, parking_name
from mqbridge.message import Batch, Message, Position, Share
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, is_cancelled, mark_error_retrieved, spawn

log = logging.getLogger(__name__)

APPEND_S = 30.0
"""Maximum time of an append."""


class InternalTopic:
    """See the module. Call `close` at the end."""

    def __init__(self, cluster: Cluster, name: str, member: str, in_flight: InFlightBytes) -> None:
        """`name` is the topic's name before it is escaped for the cluster; `member` names this gateway for operators.

        `in_flight` counts the bytes of messages that are being stored.

        The group that reads it has the same name: on some systems, all members of a group have to read the same topics.
        """
        self.name = parking_name(cluster.capabilities.topic_name, name)
        self._group = parking_name(cluster.capabilities.group_name, name)
        self._cluster, self._member, self._in_flight = cluster, member, in_flight
        self._outbound: Outbound | None = None
        self._opening: asyncio.Task[Outbound] | None = None
        """The task that opens the outbound; it goes on if those that wait for it give up."""
        self._membership: SharedMembership | None = None
        self._joining: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def needs_contents(self) -> bool:
        """False if batches of the topic can be acknowledged when their contents were dropped, see `Capabilities`."""
        return not self._cluster.capabilities.acknowledges_dropped

    async def ensure(self) -> None:
        """Create the topic if it does not exist. Raises ClusterError."""
        async with limited(f"creating {self.name}"):
            pauses, is_created = Backoff(0.02, 1.0), False
            while await self._cluster.describe(self.name) is None:
                if is_created:
                    await asyncio.sleep(pauses.delay())
                else:
                    await self._cluster.create(self.name, 1)
                    is_created = True

    async def exists(self) -> bool:
        """Return True if the topic exists. Raises ClusterError."""
        async with limited(f"finding {self.name}"):
            return await self._cluster.describe(self.name) is not None

    async def append(self, messages: Sequence[Message]) -> Sequence[Position]:
        """Store messages, and return their positions. Raises ClusterError if one is not stored, and after `close`."""
        outbound = await self._opened()
        send = self._send(outbound, Batch.of(messages))
        try:
            async with asyncio.timeout(APPEND_S):
                receipt = await asyncio.shield(send)
        except TimeoutError:
            await self._drop(outbound)
            raise ClusterError(f"nothing was stored in {self.name} within {APPEND_S:g} s") from None
        except ClusterError:
            await self._drop(outbound)
            raise
        except asyncio.CancelledError:
            outbound.withdraw([send])
            raise
        if receipt.failures:
            failure = receipt.failures[0]
            raise ClusterError(f"{self.name}: {failure.reason}", failure.failure_kind)
        return receipt.positions

    def _send(self, outbound: Outbound, batch: Batch) -> "asyncio.Future[Receipt]":
        """Send a batch. Its bytes are in flight until the outbound has done with it, even if the caller gives up before."""
        self._in_flight.add(batch.held_bytes)
        try:
            send = outbound.send(0, Share(batch))
        except BaseException:
            self._in_flight.release(batch.held_bytes)
            raise

        def on_done(send: "asyncio.Future[Receipt]") -> None:
            self._in_flight.release(batch.held_bytes)
            if not send.cancelled():
                send.exception()  # nobody may wait for it any more

        send.add_done_callback(on_done)
        return send

    async def _opened(self) -> Outbound:
        """Return the outbound, once it is open. Raises ClusterError."""
        if self._outbound is None and self._opening is None and not self._is_closed:
            self._opening = spawn(self._open(), f"opening of {self.name}", log_errors=False)
            self._opening.add_done_callback(mark_error_retrieved)
        outbound = self._outbound
        if (opening := self._opening) is not None:
            try:
                outbound = await asyncio.shield(opening)
            except asyncio.CancelledError:
                if not opening.cancelled() or is_cancelled():
                    raise
        if self._is_closed or outbound is None:
            raise ClusterError(f"{self.name} was closed")
        return outbound

    async def _open(self) -> Outbound:
        try:
            await self.ensure()
            async with limited(f"opening {self.name}"):
                self._outbound = await self._cluster.outbound(OutboundSpec(self.name, stamp_origin=False))
        finally:
            self._opening = None
        return self._outbound

    async def _drop(self, outbound: Outbound) -> None:
        """Close an outbound that has failed; the next append opens another one."""
        if self._outbound is not outbound:
            return  # another append has failed with it, too
        self._outbound = None
        await outbound.close(asyncio.get_running_loop().time() + 1.0)

    # --- reading ----------------------------------------------------------------------------------------------------------

    def follow(self, run_lane: RunLane) -> None:
        """Read the topic whenever no other gateway does, from what is not acknowledged on; not after `close`."""
        if self._joining is None and not self._is_closed:
            self._joining = spawn(self._join(run_lane), f"join of {self.name}")

    async def _join(self, run_lane: RunLane) -> None:
        supported = self._cluster.capabilities.sharing
        spec = InboundSpec(
            (self.name,),
            self._group,
            Start.EARLIEST,
            max_bytes=LANE_BYTES,
            sharing=Sharing.FAILOVER if Sharing.FAILOVER in supported else None,
            member=self._member,
            sent_back=False,
            release_wait_s=RELEASE_WAIT_S,
        )
        pauses = Backoff()
        while True:
            membership = self._membership = SharedMembership(self._cluster, spec, run_lane)
            try:
                await self.ensure()
                await membership.join()
            except MqbridgeError as error:
                log.warning("%s is not read now, which is tried again: %s", self.name, error)
                await asyncio.sleep(pauses.delay())
            else:
                return

    def read_again(self, problem: str) -> None:
        """Read the topic anew, because a lane of it has failed."""
        if self._membership is not None:
            self._membership.join_again(problem)

    async def leave(self, deadline: float | None = None) -> None:
        """Read the topic no longer: another gateway may."""
        joining, self._joining = self._joining, None
        await cancel(joining)
        membership, self._membership = self._membership, None
        if membership is not None:
            await membership.close(deadline)

    async def read(self, position: Position) -> Message | None:
        """Return the message at a position; None if there is none. Raises ClusterError."""
        async with limited(f"reading {self.name}"):
            described = await self._cluster.describe(self.name)
            if described is None:
                return None
            if len(described.partitions) != 1:
                raise ClusterError(f"{self.name} has {len(described.partitions)} partitions now, and not one")
            (partition,) = described.partitions
            bounds = (await self._cluster.bounds(self.name, partition))[partition]
            if not bounds.first <= position < bounds.next:
                return None
            reader = await self._cluster.reader(self.name, partition, position, max_bytes=1)
            try:
                batch = await reader.receive()
            except GapError:
                return None  # it was deleted meanwhile
            finally:
                await reader.close(asyncio.get_running_loop().time() + 1.0)
        found = None if batch is None or not batch.count else batch.messages[0]
        return found if found is not None and found.position == position else None

    async def close(self, deadline: float | None = None) -> None:
        """Read no longer, and close the outbound."""
        self._is_closed = True
        await self.leave(deadline)
        await cancel(self._opening)
        outbound, self._outbound = self._outbound, None
        if outbound is not None:
            await outbound.close(deadline)
