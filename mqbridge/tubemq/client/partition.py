"""One partition that a consumer holds: registered at its Broker, read pack by pack, released.

The Broker stores a confirmed offset and the end of the last get request. A get with lastPackConsumed confirms the previous pack;
a get without it receives that pack again. So only one pack is unsettled at a time, it is confirmed as a whole, and normally the
next get confirms it.

A request is abandoned if its response was lost or late, or its caller was cancelled. It may reach the Broker at any later time
and move the position there; confirming would then skip a pack that was never received. So the partition is registered again under
a fresh client id, and the Broker refuses the old request. See `partition_state`.

The requests and the meaning of their responses are in `partition_reader`, `partition_commits`, `partition_registration` and
`partition_release`. This module orders them, one request at a time, and handles errors.

Only the response to a commit contains the end of a pack. An application gets exactly-once effects if it stores this offset
together with the pack's results and starts from the stored offset, independent of the Broker's position.
"""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import (
    ClusterError,
    ConnectionLost,
    LaneRevoked,
    ProtocolError,
    RequestTimeout,
    ServerRefused,
    Unreachable,
)
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.counters import ReadCounters
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_commits import PartitionCommits
from mqbridge.tubemq.client.partition_pacing import PartitionPacing
from mqbridge.tubemq.client.partition_reader import Pack, PartitionReader
from mqbridge.tubemq.client.partition_registration import PartitionRegistration, RegistrationContext
from mqbridge.tubemq.client.partition_release import PartitionRelease
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState
from mqbridge.tubemq.client.partition_transitions import CONFIRMED, DELIVERED, UNKNOWN, AbandonedRequests
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.server_connection import ServerConnection
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)

_RETRIED_ERRORS = (ConnectionLost, RequestTimeout, Unreachable, ProtocolError)


class PartitionContext(RegistrationContext, Protocol):
    """The part of a consumer that its partitions need."""

    budget: ReadBudget
    """Limits the bytes that are in flight or buffered for the reader."""

    def connection_for(self, ref: PartitionRef) -> ServerConnection:
        """Return the connection to the partition's Broker."""

    def partition_ended(self, partition: "HeldPartition") -> None:
        """Handle the end of a partition, which is lost or released."""


class HeldPartition:
    """A held partition, from its assignment until `fetch` raises LaneRevoked."""

    def __init__(self, context: PartitionContext, ref: PartitionRef, *, fresh_id: bool = False) -> None:
        self.ref = ref
        self.counters = ReadCounters()
        self._context = context
        self._calls = PartitionCalls(context.membership, ref, context.connection_for(ref))
        if fresh_id:
            self._calls.client_id = context.membership.fresh_client_id()
        self.state = PartitionState(str(self._calls))
        self._signals = PartitionSignals(self.state)
        self.revoked = self._signals.revoked
        """Set as soon as the partition is revoked or released."""
        member = context.membership
        self._pacing = PartitionPacing(member.flow, filtered=bool(member.filter_types(ref.topic)))
        self._commits = PartitionCommits(self._calls, self.state, self._signals, self.counters)
        self._registration = PartitionRegistration(context, self._calls, self.state, self._signals, self.counters, self._commits)
        self._reader = PartitionReader(self._calls, self.state, self._signals, self.counters, self._pacing)
        self._loop = asyncio.get_running_loop()
        self._request_lock = asyncio.Lock()
        """Held during a get, a commit or a registration: the protocol allows one at a time."""
        self._held_bytes = 0
        """Bytes of the read budget that the last pack occupies."""
        self._release = PartitionRelease(self._calls, self.state, self._signals, self._dropped)

    def __str__(self) -> str:
        return str(self._calls)

    @property
    def client_id(self) -> str:
        """The client id of this registration at the Broker."""
        return self._calls.client_id

    @property
    def has_abandoned_requests(self) -> bool:
        """True if abandoned requests, of this or an earlier generation, may still reach the Broker, or a request is in flight.

        A client id other than the member's shows that an earlier generation abandoned requests. They have earlier client ids,
        including the member's, which must not be used for this partition again. A request in flight may be abandoned later.
        """
        is_in_flight = self._request_lock.locked()
        return bool(self.state.abandoned) or is_in_flight or self.client_id != self._context.membership.client_id

    @property
    def pack(self) -> Pack | None:
        """The delivered pack that is not settled yet; None if there is none."""
        return self._reader.last if self.state.pack is DELIVERED else None

    @property
    def caught_up(self) -> bool:
        """True if the last get found no data."""
        return self._reader.caught_up

    @property
    def max_offset(self) -> int:
        """The end of the store's index in the Broker's last response."""
        return self.state.max_offset

    # --- reading ----------------------------------------------------------------------------------------------------

    async def fetch(self) -> Pack:
        """Wait for the next pack and return it; a pack that was not confirmed is returned again.

        Continues across restarts of Broker and Master. Raises LaneRevoked if the partition was revoked, GapError if the Broker
        skipped messages that were never delivered.
        """
        while (pack := await self.poll()) is None:
            pass
        return pack

    async def poll(self) -> Pack | None:
        """Like `fetch`, but return None if a get returned no messages; `caught_up` is then True if there was no data at all.

        Without data there is nothing to read. With a filter, a get may also read data that has no matching message.
        """
        while True:
            try:
                pack = await self.poll_once()
            except _RETRIED_ERRORS as error:
                delay = self._pacing.failed()
                self.counters.failures += 1
                log.log(level_of(error, logging.WARNING), "fetch from %s failed, retrying in %.1f s: %s", self, delay, error)
            except ServerRefused as error:
                self.counters.failures += 1
                self._refused(error)
            else:
                return pack

    async def poll_once(self) -> Pack | None:
        """Like `poll`, but raise every ClusterError instead of retrying."""
        wait_s = self._pacing.next_at - self._loop.time()
        if wait_s > 0:
            await self._signals.pause(wait_s)
        async with self._request_lock:
            if not self.state.may_get() and not await self._registration.renew():
                return None
            if self.state.pack is CONFIRMED and self._reader.needs_pack_end:
                await self._commits.commit(consumed=True)
        # The state changes only when the get is sent: a confirmed pack stays confirmed if this call is cancelled before that. The
        # lock is free while this call waits for the budget, so that a late commit or a seek can run.
        budget, broker = self._context.budget, self.ref.broker
        async with self._signals.until_over():
            await budget.reserve(broker)
        pack: Pack | None = None
        try:
            async with self._request_lock:
                pack = await self._reader.get() if self.state.may_get() else None
        finally:
            held = pack.held_bytes if pack is not None and budget.counts_packs else 0
            self._held_bytes += held
            budget.release(broker, GET_BYTES - held)
        return pack

    def release_pack_bytes(self) -> None:
        """Release the last pack's bytes from the read budget: the reader counts them elsewhere or no longer needs the pack."""
        if self._held_bytes:
            self._context.budget.release(self.ref.broker, self._held_bytes)
            self._held_bytes = 0

    async def settled(self) -> None:
        """Wait until the delivered pack is confirmed or rejected. Raises like `fetch` if reading ended meanwhile."""
        if self.state.pack is DELIVERED:
            await self._signals.settled.wait()
            self.state.raise_if_stopped()

    def confirm(self) -> None:
        """Confirm the delivered pack. The next get request, or a commit soon after, reports this to the Broker."""
        if self.state.pack is DELIVERED:
            self._commits.confirm()
            self._reader.drop_pack()

    def reject(self, delay_s: float = 0.0) -> None:
        """Reject the delivered pack: `fetch` returns it again after `delay_s` seconds."""
        if self.state.pack is DELIVERED:
            self.state.reject()
            self._reader.drop_pack()
            self._pacing.rejected(delay_s)
            self._signals.update()

    def _refused(self, error: ServerRefused) -> None:
        """Handle a refused get or commit: schedule a registration, give up the partition, or wait."""
        if self.state.is_over:
            return
        if error.code in (codes.NO_NODE, codes.UNAUTHORIZED):  # commits are refused with UNAUTHORIZED
            log.info("%s: the Broker no longer knows this registration, registering again", self)
            self.state.forgotten(self.state.generation)
            return
        has_given_up = self._pacing.count_refusal(error.code)
        if has_given_up or error.code in (codes.DUPLICATE_PARTITION, codes.PARTITION_OCCUPIED):
            self.lose(LaneRevoked(f"{self} was lost: {error}"))
            return
        delay = self._pacing.refused(error.code)
        log.log(level_of(error, logging.WARNING), "fetch from %s failed, retrying in %.1f s: %s", self, delay, error)

    # --- committing -------------------------------------------------------------------------------------------------

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack at the Broker now, or have it delivered again. Return the offset of the next pack.

        Raises ClusterError. A failed commit may be repeated. If `fetch` is called instead, it returns the delivered pack again
        unless `confirm` was called, even if the Broker has carried out the commit. While the result of the last get is unknown,
        nothing is confirmed: that would skip messages that were never received.
        """
        async with self._request_lock:
            known = self.state.pack is not UNKNOWN
            return await self._commits.commit(consumed=consumed and known)

    async def commit_confirmed(self) -> None:
        """Commit the last pack if it is confirmed and no request has reported this to the Broker yet. Raises ClusterError.

        Does nothing after a release, which has reported the confirmation.
        """
        async with self._request_lock:
            if self.state.pack is CONFIRMED and not self.state.is_over:
                await self._commits.commit(consumed=True)

    def has_late_commit(self, now: float) -> bool:
        """Return True if a confirmed pack needs a separate commit and no request is in flight."""
        return self._commits.is_late(now) and not self._request_lock.locked()

    async def commit_late(self, now: float) -> None:
        """Commit a pack that was confirmed earlier, if no get request has followed."""
        if not self.has_late_commit(now):
            return
        try:
            await self.commit(consumed=True)
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.INFO), "commit for %s failed, the next get will confirm instead: %s", self, error)

    # --- registering ------------------------------------------------------------------------------------------------

    async def register(self, read_status: int, offset: int | None = None) -> RegisterResponseB2C:
        """Register at the Broker, at `offset` unless it is None. The response's currOffset is the start offset.

        Raises ServerRefused (410: another consumer holds the partition), ClusterError.
        """
        return await self._registration.register(read_status, offset)

    async def start_at(self, read_status: int, offset: int) -> int:
        """Register exactly at `offset`: if the Broker no longer has that data, `fetch` raises GapError.

        If the offset is beyond the end (possible after a Broker lost unflushed data), reading starts at the end, which is logged.
        Returns the offset at which the Broker starts.
        """
        return await self._registration.start_at(read_status, offset)

    async def seek(self, offset: int, *, exact: bool = True) -> int:
        """Continue reading at `offset`, also after a GapError; drop a delivered pack. Return the Broker's offset.

        If the Broker has only later offsets, `fetch` raises GapError, or with `exact=False` continues at the first of them.
        Raises LaneRevoked, or ClusterError without any change.
        """
        async with self._request_lock:
            start = await self._registration.seek(offset, exact=exact)
            self._pacing.clear()
            return start

    def heartbeat_failed(self, code: int, generation: int) -> None:
        """Handle a Broker's report that it has no registration of ours, in response to a heartbeat of this generation."""
        if generation != self.state.generation or self.state.abandoned is not AbandonedRequests.NONE:
            return  # the report is about a client id that is no longer used, or that the next registration replaces
        if code == codes.DUPLICATE_PARTITION:
            self.lose(LaneRevoked(f"{self} was lost: another consumer of the group holds it"))
        else:
            self.state.forgotten(generation)

    # --- losing and releasing ---------------------------------------------------------------------------------------

    def lose(self, why: LaneRevoked) -> None:
        """Mark the partition as lost, without unregistering at the Broker: `fetch` raises `why` from now on."""
        self._release.lose(why)

    async def release(self, deadline: float | None = None) -> None:
        """Release the partition: commit a confirmed pack; an unsettled pack will be delivered again to the next owner.

        Repeated calls share one release. `deadline` is event loop time.
        """
        await self._release.release(deadline)

    async def revoke(self) -> None:
        """Handle a revocation: wait a moment for the delivered pack to be settled, then release the partition."""
        await self._release.revoke()

    def _dropped(self) -> None:
        self.release_pack_bytes()
        self._reader.drop_pack()
        self._context.partition_ended(self)
