"""One partition that a consumer holds: registered at its Broker, read pack by pack, released.

The Broker stores the offset up to which the group has confirmed, and the offset at which the last pack ended. A get with the flag
lastPackConsumed confirms the last pack; a get without it receives that pack again. So only one pack at a time is delivered and
not yet settled, that is neither confirmed nor rejected. It is confirmed as a whole, normally by the next get.

A request is abandoned if its response was lost or late, or its caller was cancelled. It may reach the Broker at any later time
and move the group's position there. A later confirmation could then skip a pack that was never received. So the partition is
registered again with a fresh client id, and the Broker refuses the abandoned request. See `partition_state`.

`partition_calls` sends the requests, `pack_reader` and `partition_registration` say what their responses mean. This module
orders them, one request at a time, handles errors, and releases the partition; repeated releases share one request.

Only the response to a commit contains the offset at which a pack ended. An application gets exactly-once effects if it stores
this offset together with the pack's results and starts at the stored offset, whatever the Broker's position is.
"""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable
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
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.pack_reader import ANSWER_S, Pack, PackReader
from mqbridge.tubemq.client.consumer.partition_calls import PartitionCalls, Unregistered
from mqbridge.tubemq.client.consumer.partition_pacing import PartitionPacing
from mqbridge.tubemq.client.consumer.partition_registration import REGISTER_PAUSE_S, PartitionRegistration, RegistrationContext
from mqbridge.tubemq.client.consumer.partition_state import (
    CONFIRMED,
    DELIVERED,
    FORGOTTEN,
    READING,
    RELEASING,
    UNKNOWN,
    AbandonedRequests,
    PartitionState,
    Unsettled,
)
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.consumer.read_history import LastRead
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)

COMMIT_POSITION_S = 2.0
"""How long a release waits for the group's position. Without it, the next registration may not compare what was read."""
CONFIRM_WAIT_S = 3.0
"""How long a revoked partition waits for its delivered pack to be confirmed or rejected (the Java clients' default)."""

# Errors after which `poll` sends another get; a refusal is handled by `_on_refusal`.
_RETRIED_ERRORS = (ConnectionLost, RequestTimeout, Unreachable, ProtocolError)


class PartitionContext(RegistrationContext, Protocol):
    """What a held partition needs from its consumer."""

    budget: ReadBudget
    """Limits the bytes of the gets in flight. If it counts packs too, a pack counts until `release_pack_bytes` is called."""

    def connection_for(self, ref: PartitionRef) -> ServerConnection:
        """Return the connection to the partition's Broker."""

    def partition_ended(self, partition: "HeldPartition") -> None:
        """Handle that the partition is lost or released; may be called several times."""


class HeldPartition:
    """A partition that this consumer holds, from its assignment until `fetch` raises LaneRevoked.

    The first registration uses the member's own client id, or with `fresh_id` a new one. `fresh_id` must be True if earlier
    requests with the member's own id were abandoned. `is_alone` returns True if the partition's store has no other partition, as
    far as the caller knows; by default it returns False.
    """

    def __init__(
        self, context: PartitionContext, ref: PartitionRef, *, fresh_id: bool = False, is_alone: Callable[[], bool] = bool
    ) -> None:
        member = context.membership
        types = member.filter_types(ref.topic)
        is_filtered = bool(types)
        self._types_checksum = zlib.crc32("\n".join(sorted(types)).encode())
        self.ref = ref
        self._context = context
        self._calls = PartitionCalls(member, ref, context.connection_for(ref))
        if fresh_id:
            self._calls.client_id = member.fresh_client_id()
        self.state = PartitionState(str(self._calls), bool if is_filtered else is_alone)
        self.releasing, self.revoked = self.state.releasing, self.state.revoked
        """Set when the partition is wanted for another member, and as soon as it is revoked or released; see `PartitionState`."""
        self._pacing = PartitionPacing(member.flow, filtered=is_filtered)
        self._reader = PackReader(self._calls, self.state, self._pacing, self._report_progress)
        self.counters = self._reader.counters
        self._registration = PartitionRegistration(context, self._reader)
        self.on_progress: Callable[[HeldPartition], None] | None = None
        """Called when `safe_offset` or `max_offset` of the state may have changed: after each pack and each commit."""
        self.unsettled: Unsettled | None = None
        """Where the group has to go on, after a release that the Broker did not confirm; None without need."""
        self.refusal: str | None = None
        """Why the Broker refuses gets, from a refusal to the next answer; None while it answers them."""
        self._request_lock = asyncio.Lock()
        """Held during a get, a commit or a registration: the protocol allows one at a time."""
        self._held_bytes = 0
        """Bytes of the read budget that delivered packs occupy."""
        self._has_late_commit_failed = False
        """True from a failure of a late commit, which is logged, to the next success: it is repeated several times a second."""
        self._is_commit_waiting = False
        """True while `commit_late` waits for the request in flight, or for its own response."""
        self._register_task: asyncio.Task[None] | None = None
        """The task of `_register_beneath_pack`; None if it never ran."""
        self._release_task: asyncio.Task[None] | None = None
        """The task that all calls of `release` and `revoke` share; None before the first."""
        self._loop = asyncio.get_running_loop()

    def __str__(self) -> str:
        return str(self._calls)

    @property
    def client_id(self) -> str:
        """The client id of this registration at the Broker."""
        return self._calls.client_id

    @property
    def has_abandoned_requests(self) -> bool:
        """True if this object sent requests that may still reach the Broker: abandoned ones, or one that is in flight.

        Also True if the client id is not the member's own: a registration uses another id only after requests with the member's
        id were abandoned. While this is True, the member's id must not be used for this partition again.
        """
        is_in_flight = self._request_lock.locked()
        return bool(self.state.abandoned) or is_in_flight or self.client_id != self._context.membership.client_id

    @property
    def pack(self) -> Pack | None:
        """The delivered pack that is neither confirmed nor rejected yet; None if there is none."""
        return self._reader.last_pack if self.state.pack_state is DELIVERED else None

    @property
    def caught_up(self) -> bool:
        """True if all data was read that the store had a moment ago; see `PackReader.caught_up`."""
        is_overdue = self._loop.time() > self._pacing.next_get_at + ANSWER_S and not self._request_lock.locked()
        return self._reader.caught_up and not is_overdue

    @property
    def last_read(self) -> LastRead:
        """What was read last, for the next reader of the partition."""
        return LastRead(self.state.safe_offset, self._types_checksum, self._reader.history.trace)

    @property
    def registered_over(self) -> int:
        """The number of the connection over which the partition was registered last; see `ServerConnection.number`."""
        return self._reader.registered_over

    @property
    def found_no_data(self) -> bool:
        """True if the last get was answered, and found no data to read."""
        return self._reader.found_no_data

    @property
    def max_offset(self) -> int:
        """The offset after the newest message in the partition's store, as of the Broker's last response."""
        return self.state.max_offset

    # --- reading ----------------------------------------------------------------------------------------------------

    async def fetch(self) -> Pack:
        """Wait for the next pack and return it; a pack that was not confirmed is returned again.

        Failed requests are retried without limit, also while Broker or Master restart. Raises LaneRevoked if the partition was
        revoked, GapError if the Broker skipped messages that were never delivered.
        """
        while (pack := await self.poll()) is None:
            pass
        return pack

    async def poll(self) -> Pack | None:
        """Like `fetch`, but return None if a get returned no messages, or could not be sent yet (see `poll_once`).

        After a get without messages, `found_no_data` is True if there was no data to read, and False if no message in the data
        matches the filter.
        """
        while True:
            try:
                pack = await self.poll_once()
            except _RETRIED_ERRORS as error:
                delay = self._pacing.on_failure()
                self.counters.failures += 1
                log.log(
                    retry_log_level(error, logging.WARNING), "fetch from %s failed, retrying in %.1f s: %s", self, delay, error
                )
            except ServerRefused as error:
                self.counters.failures += 1
                self._on_refusal(error)
            else:
                return pack

    async def poll_once(self) -> Pack | None:
        """Like `poll`, but raise every ClusterError and ProtocolError instead of retrying.

        Also returns None if the partition has to be registered again and this is not possible yet (see
        `PartitionRegistration.renew`), or if the registration was lost while this call waited for the read budget.
        """
        await self.state.wait_while_releasing()
        wait_s = self._pacing.next_get_at - self._loop.time()
        if wait_s > 0:
            await self.state.sleep_unless_revoked(wait_s)
        async with self._request_lock:
            if self.state.lease is RELEASING:  # wanted meanwhile
                return None
            if not self.state.may_get() and not await self._registration.renew():
                return None
            # A reader that is slow or far behind commits before the get: the response contains the end of the last pack, and a
            # next pack that begins later reveals that the Broker has deleted messages in between.
            if self.state.pack_state is CONFIRMED and self._reader.needs_pack_end:
                await self._reader.commit(consumed=True)
        # The state changes only when the get is sent: if this call is cancelled before that, a confirmed pack stays confirmed.
        # This call does not hold the lock while it waits for the budget, so that a late commit or a seek can run meanwhile.
        budget, broker = self._context.budget, self.ref.broker
        async with self.state.raise_on_revocation():
            await budget.reserve(broker)  # reserves GET_BYTES
        pack: Pack | None = None
        try:
            async with self._request_lock:
                pack = await self._reader.get() if self.state.may_get() else None
        finally:
            held = pack.held_bytes if pack is not None and budget.counts_packs else 0
            self._held_bytes += held
            budget.release(broker, GET_BYTES - held)
        if self.refusal is not None:
            log.info("%s: the Broker answers again", self)
            self.refusal = None
        if pack is not None and self.on_progress is not None:
            self.on_progress(self)
        return pack

    def release_pack_bytes(self) -> None:
        """Return the bytes of the delivered packs to the read budget: the caller counts them elsewhere, or needs them no longer.

        Does nothing if the budget does not count packs (see `ReadBudget`).
        """
        if self._held_bytes:
            self._context.budget.release(self.ref.broker, self._held_bytes)
            self._held_bytes = 0

    async def wait_until_settled(self) -> None:
        """Wait until the delivered pack is confirmed or rejected. Raises LaneRevoked or GapError if reading ended meanwhile."""
        if self.state.pack_state is DELIVERED:
            await self.state.settled.wait()
            self.state.raise_if_stopped()

    def confirm(self) -> None:
        """Confirm the delivered pack, if any. The next get reports this to the Broker, or a commit if none follows soon.

        "Soon" is COMMIT_AFTER_S, see `pack_reader`.
        """
        if self.state.pack_state is DELIVERED:
            self._reader.confirm()

    def reject(self, delay_s: float = 0.0) -> None:
        """Reject the delivered pack, if any: `fetch` returns it again after `delay_s` seconds."""
        if self.state.pack_state is DELIVERED:
            self.state.reject()
            self._reader.drop_pack()
            self._pacing.delay_redelivery(delay_s)

    def _report_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self)

    def _on_refusal(self, error: ServerRefused) -> None:
        """Handle a refused get or commit: register again before the next get, lose the partition, or delay the next get."""
        if self.state.is_over:  # the next `fetch` raises LaneRevoked
            return
        if error.code in (codes.NO_NODE, codes.UNAUTHORIZED):  # Brokers refuse a get with NO_NODE, a commit with UNAUTHORIZED
            log.info("%s: the Broker no longer knows this registration, registering again", self)
            self._reader.on_outage()
            self.state.on_registration_forgotten(self.state.generation)
            return
        # Brokers check tokens that the Master changes every few minutes, so a few refusals are normal.
        has_too_many_token_refusals = self._pacing.count_token_refusal(error.code)
        if has_too_many_token_refusals or error.code in (codes.DUPLICATE_PARTITION, codes.PARTITION_OCCUPIED):
            self.lose(LaneRevoked(f"{self} was lost: {error}"))
            return
        delay = self._pacing.on_refusal(error.code)
        level = retry_log_level(error, logging.WARNING) if self.refusal is None else logging.DEBUG
        self.refusal = str(error)
        log.log(level, "fetch from %s failed, retrying every %.1f s: %s", self, delay, error)

    # --- committing -------------------------------------------------------------------------------------------------

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack at the Broker now, or without `consumed` have it delivered again.

        Returns the offset of the next pack. Raises ClusterError or ProtocolError; LaneRevoked if the partition was lost and the
        pack is of an earlier registration. A failed commit may be repeated. If `fetch` is called after a failed commit, it
        returns the delivered pack again unless `confirm` was called, even if the Broker has carried out the commit. While the
        result of the last get is unknown, nothing is confirmed: this would skip messages that were never received.
        """
        async with self._request_lock:
            if self.state.is_detached:
                return await self._commit_detached(consumed=consumed)
            is_known = self.state.pack_state is not UNKNOWN
            return await self._reader.commit(consumed=consumed and is_known)

    async def _commit_detached(self, *, consumed: bool) -> int:
        """Commit a pack of an earlier registration: the Broker learns its end by a registration there, if the end is known."""
        end = self.state.pack_end
        if self.state.is_over:
            self.state.raise_if_stopped()
        if consumed and end is not None:
            start = await self._registration.start_at(read_status=0, offset=end)  # it settles the pack
            self._reader.drop_pack()
            return start
        offset = self.state.safe_offset
        self.reject()
        if consumed:
            raise ClusterError(f"{self}: the Broker has restarted and sends the delivered messages again")
        return offset

    async def commit_confirmed(self) -> None:
        """Commit the last pack if it is confirmed and no request has reported this to the Broker yet. Raises ClusterError.

        Does nothing once the partition is revoked or released: the unregister request reports the confirmation.
        """
        async with self._request_lock:
            if self.state.pack_state is CONFIRMED and not self.state.is_over:
                await self._reader.commit(consumed=True)

    def needs_late_commit(self, now: float) -> bool:
        """Return True if a commit should be sent now (loop time), and none waits to be sent.

        It reports a pack confirmed COMMIT_AFTER_S before, or queries the position of an idle partition.
        """
        if self._is_commit_waiting:
            return False
        # An idle partition may have a get in flight whenever this is called, so the position is queried after that get.
        return self._reader.needs_commit(now) or (self.state.lease is READING and self._reader.needs_position(now))

    def _is_commit_due(self, now: float) -> bool:
        """Like `needs_late_commit`, when no request is in flight."""
        return self._reader.needs_commit(now) or (self.state.may_query_position and self._reader.needs_position(now))

    async def commit_late(self, now: float) -> None:
        """Send a commit if `needs_late_commit`, after the request in flight; an error is only logged."""
        if not self.needs_late_commit(now):
            return
        self._is_commit_waiting = True
        try:
            async with self._request_lock:
                # The request in flight may have reported the pack, or have returned another one.
                if self._is_commit_due(now):
                    await self._reader.commit(consumed=True)
                    self._has_late_commit_failed = False
        except (ClusterError, ProtocolError) as error:
            level = logging.DEBUG if self._has_late_commit_failed else retry_log_level(error, logging.INFO)
            self._has_late_commit_failed = self._has_late_commit_failed or level != logging.DEBUG
            log.log(
                level,
                "a commit for %s failed, the next read request will confirm the same messages instead: %s",
                self,
                error,
            )
        finally:
            self._is_commit_waiting = False

    # --- registering ------------------------------------------------------------------------------------------------

    async def register(self, read_status: int, offset: int | None = None) -> RegisterResponseB2C:
        """Register at the Broker, at `offset` unless it is None. The response's currOffset is the start offset.

        `read_status` is a `StartOffset` (see `held_partitions`). Raises ClusterError; if another consumer holds the partition, it
        is a ServerRefused with the code PARTITION_OCCUPIED.
        """
        return await self._registration.register(read_status, offset)

    def remember(self, last_read: LastRead) -> bool:
        """Remember what another reader has read of the partition; return False if that says nothing of what this one reads."""
        if last_read.types != self._types_checksum or not last_read.packs:
            return False
        self._reader.history.restore(last_read.packs, self._loop.time())
        return True

    async def find_start(self, position: int, offset: int) -> int:
        """Compare what the Broker has with what is remembered; see `PartitionRegistration.find_start`."""
        return await self._registration.find_start(position, offset)

    async def start_at(self, read_status: int, offset: int, *, exact: bool = True) -> int:
        """Register at `offset`: with `exact`, if the Broker no longer has that data, `fetch` raises GapError.

        `read_status` is as in `register`; it must not be ALWAYS_LATEST, with which a Broker would ignore the offset.

        If the offset is beyond the end (possible after a Broker lost data that was not on disk yet), reading starts at the end,
        which is logged. Returns the offset at which the Broker starts.
        """
        return await self._registration.start_at(read_status, offset, exact=exact)

    async def seek(self, offset: int, *, exact: bool = True) -> int:
        """Continue reading at `offset`, also after a GapError; a delivered pack is dropped.

        Returns the offset at which the Broker continues. If the Broker has only later offsets, `fetch` raises GapError, or with
        `exact=False` continues at the first of them. Raises LaneRevoked, or ClusterError; reading then continues where it was
        before.
        """
        async with self._request_lock:
            start = await self._registration.seek(offset, exact=exact)
            self._pacing.clear()
            return start

    def on_heartbeat_failure(self, code: int, generation: int) -> None:
        """Handle a heartbeat response which says that the registration of this generation is gone; `code` tells why."""
        if generation != self.state.generation or self.state.abandoned is not AbandonedRequests.NONE:
            return  # the report is about a client id that is no longer used, or that the next registration replaces
        if code == codes.DUPLICATE_PARTITION:
            self.lose(LaneRevoked(f"{self} was lost: another consumer of the group holds it"))
        else:
            self._reader.on_outage()
            self.state.on_registration_forgotten(generation)
            if self.state.is_forgotten_beneath_pack and (self._register_task is None or self._register_task.done()):
                self._register_task = spawn(self._register_beneath_pack(), f"tubemq registering {self}")

    async def _register_beneath_pack(self) -> None:
        """Register again while the last pack is not confirmed, with retries; see `PartitionState.is_forgotten_beneath_pack`.

        Nothing else would do it as long as the reader waits for its targets.
        """
        state = self.state
        with contextlib.suppress(LaneRevoked):
            while state.is_forgotten_beneath_pack:
                try:
                    async with self._request_lock:
                        if state.is_forgotten_beneath_pack:
                            await self._registration.renew()
                except ServerRefused as error:
                    self._on_refusal(error)  # the partition is lost if another consumer holds it
                except (ClusterError, ProtocolError) as error:
                    log.log(
                        retry_log_level(error, logging.INFO),
                        "registering %s again failed, retrying in %g s: %s",
                        self,
                        REGISTER_PAUSE_S,
                        error,
                    )
                if state.lease is FORGOTTEN:
                    await state.sleep_unless_revoked(REGISTER_PAUSE_S)

    # --- losing and releasing ---------------------------------------------------------------------------------------
    # lost      the Broker reports another owner or refuses us for good: there is nothing to unregister
    # wanted    the Master is going to assign the partition to another member, and waits until we give it up
    # revoked   the Master assigns the partition to another member: unregister after a short wait for the delivered pack
    # released  we give the partition up: unregister at once

    def lose(self, reason: LaneRevoked) -> None:
        """Mark the partition as lost, without unregistering at the Broker: `fetch` raises `reason` from now on."""
        self.state.release(reason)
        self._on_end()

    async def release(self, deadline: float | None = None) -> None:
        """Release the partition: a confirmed pack is committed, any other pack will be delivered again to the next owner.

        Repeated calls share one release. At `deadline` (event loop time; None: no limit) the call returns in any case, and the
        release continues in the background.
        """
        self.state.revoke(self._released_error())  # stops reading; `_unregister` then makes the release final
        await self._unregister_once(deadline)

    async def revoke(self, keep_s: float = 0.0) -> None:
        """Handle a revocation: wait up to CONFIRM_WAIT_S for the delivered pack to be settled, then release the partition.

        Before that, the partition is kept for up to `keep_s` seconds, or until somebody calls `release`: see `Lease.RELEASING`.
        """
        if keep_s and self.state.want():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(keep_s):
                    await self.state.revoked.wait()
        self.state.revoke(LaneRevoked(f"{self} now belongs to another consumer"))
        try:
            async with asyncio.timeout(CONFIRM_WAIT_S):
                await self.state.settled.wait()
        except TimeoutError:
            log.info(
                "%s: the messages delivered last were not confirmed within %g s of the revocation, they will be delivered again",
                self,
                CONFIRM_WAIT_S,
            )
        await self._unregister_once(None)  # no deadline: the request to unregister has its own timeout

    async def stop_releasing(self) -> None:
        """Cancel a release that has missed its deadline: the lease at the Broker will expire."""
        await cancel(self._release_task, self._register_task)

    async def _unregister_once(self, deadline: float | None) -> None:
        """Wait until `deadline` for the task that unregisters, which the first call starts."""
        if self._release_task is None:
            self._release_task = spawn(self._unregister(), f"tubemq release {self}")
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._release_task)
        except TimeoutError:
            log.info("%s: the Broker did not confirm the release before the deadline; the lease at the Broker will expire", self)

    async def _unregister(self) -> None:
        state = self.state
        unsettled = await self._try_commit_position()
        must_unregister = state.must_unregister
        is_position_right = not state.is_locating
        if must_unregister and state.is_position_unset and unsettled is not None:
            is_position_right &= await self._try_set_position(unsettled.offset)
        must_confirm = state.release(self._released_error())
        if must_unregister:
            result = await self._calls.try_unregister(consumed=must_confirm)
            # If the request got no response, it may arrive later, and end our next registration or confirm a pack that we read
            # then. So the next registration uses a new client id, for which the old request has no effect.
            if result is Unregistered.UNKNOWN:
                state.on_registration_abandoned()
            if result is not Unregistered.DONE or not is_position_right:
                self.unsettled = unsettled
        self._on_end()

    async def _try_commit_position(self) -> Unsettled | None:
        """Confirm a confirmed pack, and query the position: then it is known that nothing between is unread.

        A request in flight is waited for: a get is cancelled, but the Broker carries it out before the commit. Returns what is
        unsettled without the commit, which may get no response.
        """
        unsettled = self.state.unsettled
        try:
            async with asyncio.timeout(COMMIT_POSITION_S), self._request_lock:
                unsettled = self.state.unsettled
                if self.state.is_position_ahead:
                    await self._reader.commit(consumed=self.state.pack_state is not UNKNOWN)
        except TimeoutError:
            log.debug("%s: the position is not known at the release: the Broker has not answered", self)
        except (ClusterError, ProtocolError) as error:
            log.debug("%s: the position is not known at the release: %s", self, error)
        return unsettled

    async def _try_set_position(self, offset: int) -> bool:
        """Register at the end of a detached pack that was confirmed, which the Broker does not know yet. Return True if done."""
        try:
            await self._calls.register(read_status=0, offset=offset)
        except (ClusterError, ProtocolError) as error:
            if not isinstance(error, (ServerRefused, Unreachable)):
                self.state.on_registration_abandoned()
            log.log(
                retry_log_level(error, logging.INFO),
                "%s: the group's position could not be set to %d, so messages will be delivered again: %s",
                self,
                offset,
                error,
            )
            return False
        return True

    def _released_error(self) -> LaneRevoked:
        return LaneRevoked(f"{self} was released")

    def _on_end(self) -> None:
        self.release_pack_bytes()
        self._reader.drop_pack()
        if self._register_task is not None:
            self._register_task.cancel()
        self._context.partition_ended(self)
