"""One partition that a consumer holds: registered at its Broker, read pack by pack, given back.

The Broker remembers a confirmed offset and how far the last get went. A get with lastPackConsumed confirms the pack before;
without it that pack comes again. So one pack is out at a time, it is confirmed as a whole, and that goes with the next get.

A request that was given up (its answer was lost, came too late, or its caller was cancelled) may reach the Broker at any later
time and move that position; confirming would then skip a pack that nobody saw. So the partition is then registered anew under a
fresh client id, which makes the Broker refuse the old request. See `partition_state` for what is known when.

What each request does and what its answer means is in `partition_reader`, `partition_commits`, `partition_registration` and
`partition_release`. Here is their order, one request at a time, and what follows from errors.

Where a pack ends is known only from a commit's answer. Whoever stores that offset together with the pack's results, and starts
there the next time, has each message's effect exactly once, whatever the Broker remembers.
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
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_commits import PartitionCommits
from mqbridge.tubemq.client.partition_pacing import PartitionPacing
from mqbridge.tubemq.client.partition_reader import Pack, PartitionReader
from mqbridge.tubemq.client.partition_registration import PartitionRegistration, RegistrationContext
from mqbridge.tubemq.client.partition_release import PartitionRelease
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState
from mqbridge.tubemq.client.partition_table import CONFIRMED, OUT, UNKNOWN, Strays
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.client.stats import ReadCounters
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)

_DOUBT = (ConnectionLost, RequestTimeout, Unreachable, ProtocolError)


class PartitionContext(RegistrationContext, Protocol):
    """What a partition needs of its consumer."""

    budget: ReadBudget
    """Bounds the bytes that may arrive, or wait for their reader, at once."""

    def session_for(self, ref: PartitionRef) -> Session:
        """The session of the partition's Broker."""

    def dropped(self, partition: "HeldPartition") -> None:
        """The partition is not ours any more."""


class HeldPartition:
    """A partition of ours, from its assignment until `fetch` raises LaneRevoked."""

    def __init__(self, context: PartitionContext, ref: PartitionRef, *, fresh_id: bool = False) -> None:
        self.ref = ref
        self.counters = ReadCounters()
        self._context = context
        self._calls = PartitionCalls(context.membership, ref, context.session_for(ref))
        if fresh_id:
            self._calls.client_id = context.membership.fresh_client_id()
        self.state = PartitionState(str(self._calls))
        self._signals = PartitionSignals(self.state)
        self.revoked = self._signals.revoked
        """Set at once when it is taken away or given back."""
        member = context.membership
        self._pacing = PartitionPacing(member.flow, filtered=bool(member.types_of(ref.topic)))
        self._commits = PartitionCommits(self._calls, self.state, self._signals, self.counters)
        self._registration = PartitionRegistration(context, self._calls, self.state, self._signals, self.counters, self._commits)
        self._reader = PartitionReader(self._calls, self.state, self._signals, self.counters, self._pacing)
        self._loop = asyncio.get_running_loop()
        self._one_request = asyncio.Lock()
        """Held by a get, a commit, a registration: they mean something only one after the other."""
        self._held_bytes = 0
        """What of the budget the last pack takes, while it counts."""
        self._release = PartitionRelease(self._calls, self.state, self._signals, self._dropped)

    def __str__(self) -> str:
        return str(self._calls)

    @property
    def client_id(self) -> str:
        """Under which the Broker knows us here."""
        return self._calls.client_id

    @property
    def has_strays(self) -> bool:
        """Whether requests that were given up, now or in an earlier run, may still reach the Broker, or one that is under way.

        Those of earlier runs carry other ids than ours now, the member's own among them: it is not to be used here again. What is
        under way when the partition is lost may be given up after that.
        """
        is_under_way = self._one_request.locked()
        return bool(self.state.strays) or is_under_way or self.client_id != self._context.membership.client_id

    @property
    def pack(self) -> Pack | None:
        """The pack that is out."""
        return self._reader.last if self.state.pack is OUT else None

    @property
    def caught_up(self) -> bool:
        """The last get found nothing."""
        return self._reader.caught_up

    @property
    def max_offset(self) -> int:
        """The end of the store's index when the Broker last said it."""
        return self.state.max_offset

    # --- reading ----------------------------------------------------------------------------------------------------

    async def fetch(self) -> Pack:
        """The next pack; waits. When the one before was not confirmed, that one again.

        Survives restarts of Broker and Master. Raises LaneRevoked when the partition was taken away, GapError when the
        Broker went past messages that we never got.
        """
        while (pack := await self.look()) is None:
            pass
        return pack

    async def look(self) -> Pack | None:
        """Like `fetch`, but None when a get found nothing, with `caught_up` when there was nothing at all."""
        while True:
            try:
                pack = await self.poll()
            except _DOUBT as error:
                delay = self._pacing.failed()
                self.counters.failures += 1
                log.log(level_of(error, logging.WARNING), "fetch from %s failed, retrying in %.1f s: %s", self, delay, error)
            except ServerRefused as error:
                self.counters.failures += 1
                self._refused(error)
            else:
                return pack

    async def poll(self) -> Pack | None:
        """Like `look`, without a second try. Raises ClusterError as it comes, too."""
        wait_s = self._pacing.next_at - self._loop.time()
        if wait_s > 0:
            await self._signals.pause(wait_s)
        async with self._one_request:
            if not self.state.may_ask() and not await self._registration.renew():
                return None
            if self.state.pack is CONFIRMED and self._reader.end_matters:
                await self._commits.commit(consumed=True)
        # The state changes only when the get really goes out: cancelled in the queue, a confirmed pack stays confirmed. While it
        # waits for room other requests may go out, a late commit or a seek.
        budget, broker = self._context.budget, self.ref.broker
        async with self._signals.until_over():
            await budget.take(broker)
        pack: Pack | None = None
        try:
            async with self._one_request:
                pack = await self._reader.get() if self.state.may_ask() else None
        finally:
            held = pack.held_bytes if pack is not None and budget.counts_packs else 0
            self._held_bytes += held
            budget.give(broker, GET_BYTES - held)
        return pack

    def pack_taken(self) -> None:
        """The last pack counts on another account now, or nobody wants it: its bytes make room for other gets."""
        if self._held_bytes:
            self._context.budget.give(self.ref.broker, self._held_bytes)
            self._held_bytes = 0

    async def settled(self) -> None:
        """Wait until the pack that is out is confirmed or rejected. Raises like `fetch` when reading ended meanwhile."""
        if self.state.pack is OUT:
            await self._signals.settled.wait()
            self.state.check()

    def confirm(self) -> None:
        """The pack that is out is consumed. The Broker hears of it with the next get, or soon after."""
        if self.state.pack is OUT:
            self._commits.confirm()
            self._reader.let_go()

    def reject(self, delay_s: float = 0.0) -> None:
        """The pack that is out is not consumed: `fetch` returns it again, not before `delay_s` seconds."""
        if self.state.pack is OUT:
            self.state.reject()
            self._reader.let_go()
            self._pacing.rejected(delay_s)
            self._signals.update()

    def _refused(self, error: ServerRefused) -> None:
        """Register again, end, or wait."""
        if self.state.is_over:
            return
        if error.code in (codes.NO_NODE, codes.UNAUTHORIZED):  # the second is what commits say
            log.info("%s: the Broker does not know us any more, registering again", self)
            self.state.forgotten(self.state.run)
            return
        gives_up = self._pacing.gives_up(error.code)
        if gives_up or error.code in (codes.DUPLICATE_PARTITION, codes.PARTITION_OCCUPIED):
            self.lose(LaneRevoked(f"{self} was lost: {error}"))
            return
        delay = self._pacing.refused(error.code)
        log.log(level_of(error, logging.WARNING), "fetch from %s failed, retrying in %.1f s: %s", self, delay, error)

    # --- committing -------------------------------------------------------------------------------------------------

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack at the Broker now, or give it back to be read again. Returns where the next one starts.

        Raises ClusterError. A commit that failed may be repeated; if `fetch` is called instead, a pack that was out, and not
        confirmed otherwise, comes again, whatever the Broker made of the commit. While it is not known what the last get read,
        nothing is confirmed: that would skip what never arrived.
        """
        async with self._one_request:
            known = self.state.pack is not UNKNOWN
            return await self._commits.commit(consumed=consumed and known)

    def has_late_commit(self, now: float) -> bool:
        """Whether a pack was confirmed a while ago and no request is under way that would say so."""
        return self._commits.is_late(now) and not self._one_request.locked()

    async def commit_late(self, now: float) -> None:
        """Tell the Broker of a pack that was confirmed a while ago and is followed by no get."""
        if not self.has_late_commit(now):
            return
        try:
            await self.commit(consumed=True)
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.INFO), "a commit for %s comes with the next get instead: %s", self, error)

    # --- registering ------------------------------------------------------------------------------------------------

    async def register(self, read_status: int, offset: int | None = None) -> RegisterResponseB2C:
        """Take the partition at its Broker, from `offset` when there is one. The answer's currOffset is where reading starts.

        Raises ServerRefused (410: another consumer has it), ClusterError.
        """
        return await self._registration.register(read_status, offset)

    async def start_at(self, read_status: int, offset: int) -> int:
        """Like `register`, and exactly at `offset`: when the Broker no longer holds that, `fetch` raises GapError.

        An offset beyond the end, which a Broker that lost its memory may leave behind, becomes the end, and that is logged.
        Returns where the Broker begins.
        """
        return await self._registration.start_at(read_status, offset)

    async def seek(self, offset: int) -> int:
        """Go on reading at `offset`, also after a GapError; a pack that is out is forgotten. Returns where the Broker goes on.

        Raises LaneRevoked, and ClusterError, after which everything is as it was before.
        """
        async with self._one_request:
            given = await self._registration.seek(offset)
            self._pacing.clear()
            return given

    def heartbeat_failed(self, code: int, run: int) -> None:
        """The Broker said in a heartbeat that was sent in that run that it does not count this partition as ours."""
        if run != self.state.run or self.state.strays is not Strays.NONE:
            return  # it was about a client id that is not in use any more, or soon will not be
        if code == codes.DUPLICATE_PARTITION:
            self.lose(LaneRevoked(f"{self} was lost: another consumer of the group has it"))
        else:
            self.state.forgotten(run)

    # --- the end ----------------------------------------------------------------------------------------------------

    def lose(self, why: LaneRevoked) -> None:
        """It is over, and nothing is left to give back: `fetch` raises `why` from now on."""
        self._release.lose(why)

    async def release(self, deadline: float | None = None) -> None:
        """Give the partition back: a confirmed pack is committed, one that is out will be delivered again.

        However often it is asked for, it happens once. `deadline` is a time of the event loop.
        """
        await self._release.release(deadline)

    async def revoke(self) -> None:
        """It was taken away: wait a moment for the pack that is out, then give the partition back."""
        await self._release.revoke()

    def _dropped(self) -> None:
        self.pack_taken()
        self._reader.let_go()
        self._context.dropped(self)
