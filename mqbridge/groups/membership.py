"""A member of a consumer group: joins, gives each assigned lane to a function that runs it, and joins again after failures.

JOINING   it is not a member; the first join is awaited by the owner, later ones are repeated with growing pauses
JOINED    lanes are accepted
CLOSED    it has left, and does not join again

    (join succeeds)         JOINING -> JOINED
    (the inbound fails)     JOINED -> JOINING
    close                   JOINING, JOINED -> CLOSED
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec
from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.errors import ClusterError, MqbridgeError
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 120.0
"""Timeout of a join. Each of its requests has a much shorter one, but an adapter may subscribe to many partitions in sequence."""
GRACE_S = 0.5
"""Time after the deadline that tasks get that obey it."""

RunLane = Callable[[InboundLane, Inbound], Awaitable[None]]
"""Runs a lane until it is revoked, and releases it; it is cancelled when the membership ends."""


class MembershipState(Enum):
    """The state of a membership, see the module."""

    JOINING = "joining"
    JOINED = "joined"
    CLOSED = "closed"


class SharedMembership:
    """See the module. Call `join` once, then `close`."""

    def __init__(self, cluster: Cluster, spec: InboundSpec, run_lane: RunLane) -> None:
        self.state = MembershipState.JOINING
        self.problem: str | None = None
        """Why it is not a member; None while it is."""
        self.rejoins = 0
        """Number of joins after the first one."""
        self._cluster, self._spec, self._run_lane = cluster, spec, run_lane
        self._label = f"group {spec.group} of cluster {cluster.name}"
        self._inbound: Inbound | None = None
        self._keeper: asyncio.Task[None] | None = None
        """The task that accepts lanes, and joins again."""
        self._lanes: set[asyncio.Task[None]] = set()
        """The tasks that run lanes."""
        self._closing: asyncio.Task[None] | None = None
        """The task that closes the last inbound that was left; it goes on if its caller is cancelled."""

    async def join(self) -> None:
        """Join for the first time. Raises ClusterError, also if `close` is called meanwhile."""
        inbound = await self._join()
        if self.state is MembershipState.CLOSED:
            self._inbound = inbound
            await asyncio.shield(self._close_inbound(None))
            raise ClusterError(f"{self._label} was left while it was joined")
        self._on_joined(inbound)
        self._keeper = spawn(self._keep(inbound), f"lanes of {self._label}")

    async def _join(self) -> Inbound:
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                return await self._cluster.inbound(self._spec)
        except TimeoutError:
            raise ClusterError(f"joining {self._label} did not finish within {JOIN_TIMEOUT_S:g} s") from None

    def join_again(self, reason: str) -> None:
        """Leave the group and join it again: so each of its partitions gets a new lane."""
        if self.state is MembershipState.JOINED and self._keeper is not None and self._inbound is not None:
            self._keeper.cancel()
            self._keeper = spawn(self._keep(self._inbound, ClusterError(reason)), f"lanes of {self._label}")

    def _on_joined(self, inbound: Inbound) -> None:
        self._inbound, self.problem = inbound, None
        self.state = MembershipState.JOINED

    async def _keep(self, inbound: Inbound, error: Exception | None = None) -> None:
        """Accept lanes, and join again whenever the membership fails; with `error`, it has failed already."""
        pauses = Backoff()
        while True:
            if error is not None:
                inbound = await self._join_again(error, pauses)
            try:
                async for lane in inbound.lanes():
                    pauses.reset()
                    task = spawn(self._run_lane_logged(lane, inbound), f"lane {lane.partition} of {self._label}")
                    self._lanes.add(task)
                    task.add_done_callback(self._lanes.discard)
                error = ClusterError("it was closed")
            except MqbridgeError as failed:
                error = failed
            except Exception as bug:  # a bug must not look like a group without messages
                log.exception("the membership in %s failed unexpectedly", self._label)
                error = bug

    async def _run_lane_logged(self, lane: InboundLane, inbound: Inbound) -> None:
        try:
            await self._run_lane(lane, inbound)
        finally:
            if not lane.revoked.is_set():
                await lane.release()

    async def _join_again(self, error: Exception, pauses: Backoff) -> Inbound:
        """Leave what is left of the membership, and join until that succeeds."""
        self.state, self.problem = MembershipState.JOINING, str(error) or repr(error)
        log.warning("the membership in %s failed, joining again: %s", self._label, self.problem)
        await cancel(*self._lanes)
        await asyncio.shield(self._close_inbound(None))
        while True:
            await asyncio.sleep(pauses.delay())
            try:
                joined = await self._join()
            except MqbridgeError as failed:
                self.problem = str(failed)
                log.warning("joining %s failed, trying again: %s", self._label, failed)
                continue
            except Exception as bug:
                self.problem = repr(bug)
                log.exception("joining %s failed unexpectedly, trying again", self._label)
                continue
            self.rejoins += 1
            self._on_joined(joined)
            log.info("joined %s again", self._label)
            return joined

    def _close_inbound(self, deadline: float | None) -> "asyncio.Task[None]":
        """Return the task that closes the inbound, or did."""
        inbound, self._inbound = self._inbound, None
        if inbound is not None or self._closing is None:
            self._closing = spawn(self._close(inbound, deadline), f"leaving {self._label}")
        return self._closing

    async def _close(self, inbound: Inbound | None, deadline: float | None) -> None:
        try:
            if inbound is not None:
                await inbound.close(deadline)
        except Exception:
            log.exception("leaving %s failed", self._label)

    async def close(self, deadline: float | None = None) -> None:
        """Leave the group, once the lanes are released; `deadline` is a loop time. The owner ends what its lanes do first."""
        self.state = MembershipState.CLOSED
        deadline = resolve_deadline(deadline)
        loop = asyncio.get_running_loop()
        await cancel(self._keeper)
        await asyncio.wait([self._close_inbound(deadline)], timeout=max(GRACE_S, deadline - loop.time() + GRACE_S))
        for task in self._lanes:
            task.cancel()
        if self._lanes:
            await asyncio.wait(self._lanes, timeout=max(GRACE_S, deadline - loop.time()))
