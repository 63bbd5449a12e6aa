"""One partition while it is ours: read pack by pack.

The Broker remembers a confirmed offset and how far the last get went. A get with lastPackConsumed confirms the pack before;
without it that pack comes again. So one pack is out at a time, it is confirmed as a whole, and that goes with the next get.

When an answer was lost nobody knows whether the Broker has moved on, and confirming would then skip a pack that we never saw.
So after any doubt the next get does not confirm: a pack may come twice, none is left out.

Where a pack ends is known only from a commit's answer; see `_end_matters`. Whoever stores that offset together with the pack's
results, and starts there the next time, has each message's effect exactly once, whatever the Broker remembers.
"""

import asyncio
import logging
import time
from typing import Protocol

from mqbridge.errors import (
    ClusterError,
    ConnectionLost,
    GapError,
    LaneRevoked,
    MqbridgeError,
    ProtocolError,
    RequestTimeout,
    ServerRefused,
    Unreachable,
)
from mqbridge.net.backoff import Backoff
from mqbridge.tubemq.client.flow import NOT_FOUND_WAIT_S, Meter
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.pack import CONFIRMED, Outstanding, Pack
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.progress import Progress
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.client.stats import ReadCounters
from mqbridge.tubemq.client.tenure import Tenure
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, RegisterResponseB2C
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)

AUTH_TRIES = 5
"""Visit tokens change every few minutes and come with heartbeats; five refusals in a row are no coincidence."""
WAITS_S = {codes.MOVED: 0.2, codes.FORBIDDEN: 2.0, codes.CERTIFICATE_FAILURE: 2.0}
WAIT_S = 0.3
"""Before the next get after an error, as the Java clients have it."""
COMMIT_AFTER_S = 0.2
"""A confirmation that no get has taken along by then travels alone."""
AGED_S = 5.0
FAR_BEHIND_BYTES = 64 << 20

_DOUBT = (ConnectionLost, RequestTimeout, Unreachable, ProtocolError)


class Owner(Protocol):
    """What a partition needs of its consumer."""

    membership: Member
    gets: asyncio.Semaphore
    """Bounds the answers that may arrive at once."""
    seen_at: float
    """Loop time of the Master's last good answer."""

    def session_for(self, ref: PartitionRef) -> Session:
        """The session of the partition's Broker."""

    def dropped(self, partition: "PartitionSession") -> None:
        """The partition is not ours any more."""


class PartitionSession:
    """A partition of ours, from its assignment until `fetch` raises LaneRevoked."""

    def __init__(self, owner: Owner, ref: PartitionRef) -> None:
        self.ref = ref
        self.caught_up = False
        """The last get found nothing."""
        self.counters = ReadCounters()
        self._owner = owner
        self._calls = PartitionCalls(owner.membership, ref, owner.session_for(ref))
        self._progress = Progress(str(self._calls))
        self._outstanding = Outstanding()
        self._tenure = Tenure(self._calls, self._progress, self._outstanding, self.counters, owner, lambda: owner.dropped(self))
        self._meter = Meter(owner.membership.flow, filtered=bool(owner.membership.types_of(ref.topic)))
        self._next_at = 0.0
        self._auth_failures = 0
        self._turn = asyncio.Lock()
        """Held by a get, a commit or a seek."""
        self._backoff = Backoff()
        self._loop = asyncio.get_running_loop()

    def __str__(self) -> str:
        return str(self._calls)

    @property
    def pack(self) -> Pack | None:
        """The pack that is out."""
        return self._outstanding.pack

    @property
    def registered(self) -> bool:
        """Whether its Broker counts it as ours, as far as we know."""
        return self._tenure.registered

    @property
    def revoked(self) -> bool:
        """Whether it was taken away or given back."""
        return self._tenure.revoked

    @property
    def over(self) -> asyncio.Event:
        """Set when it was taken away or given back."""
        return self._tenure.over

    @property
    def max_offset(self) -> int:
        """The end of the store's index when the Broker last said it."""
        return self._tenure.max_offset

    # --- reading ----------------------------------------------------------------------------------------------------

    async def fetch(self) -> Pack:
        """The next pack; waits. When the one before was not confirmed, that one again.

        Survives restarts of Broker and Master. Raises LaneRevoked when the partition was taken away, GapError when the
        Broker went past messages that we never got.
        """
        tenure = self._tenure
        while True:
            if tenure.ended is not None:
                raise tenure.ended
            try:
                await tenure.pause(self._next_at - self._loop.time())
                if not tenure.registered or self._progress.rewind:
                    await tenure.take_again()
                    continue
                async with self._turn:
                    pack = await self._fetch_once()
            except _DOUBT as error:
                self.counters.failures += 1
                log.warning("reading %s goes on later: %s", self, error)
                self._next_at = self._loop.time() + self._backoff.delay()
            except ServerRefused as error:
                self.counters.failures += 1
                self._refused(error)
            else:
                self._backoff.reset()
                if pack is not None:
                    return pack

    async def settled(self) -> None:
        """Wait until the pack that is out is confirmed or rejected. Raises like `fetch`."""
        if self.pack is not None and self._tenure.ended is None:
            await self._outstanding.quiet.wait()
        if self._tenure.ended is not None:
            raise self._tenure.ended

    def confirm(self) -> None:
        """The pack that is out is consumed. The Broker hears of it with the next get, or soon after."""
        self._outstanding.confirm(self._loop.time())

    def reject(self) -> None:
        """The pack that is out is not consumed: `fetch` returns it again."""
        self._outstanding.reject()

    async def poll(self) -> Pack | None:
        """One get, without a second try: None when nothing was found, with `caught_up` when there was nothing at all.

        Raises ClusterError as it comes.
        """
        await self._tenure.pause(self._next_at - self._loop.time())
        async with self._turn:
            return await self._fetch_once()

    async def _fetch_once(self) -> Pack | None:
        if self._outstanding.state == CONFIRMED and self._end_matters():
            await self._commit(consumed=True)
        # The state changes only when the get really goes out: cancelled in the queue, a confirmed pack stays confirmed.
        async with self._owner.gets:
            return await self._get_pack(consumed=self._outstanding.state == CONFIRMED)

    async def _get_pack(self, *, consumed: bool) -> Pack | None:
        self._outstanding.asked()
        self._progress.doubt = True
        self.counters.gets += 1
        try:
            answer, size = await self._calls.get(consumed=consumed)
            if answer.errCode != codes.SUCCESS:
                self._missed(answer, consumed=consumed)
                return None
            return self._took(answer, size)
        finally:
            self._outstanding.answered()

    def _took(self, answer: GetMessageResponseB2C, size: int) -> Pack | None:
        """A read that worked; it may still have found none of ours, which the Broker has then confirmed by itself."""
        now = self._loop.time()
        lag = max(answer.currDataDlt, 0)
        self.caught_up = False
        self._auth_failures = 0
        wait = self._meter.found(size, lag, now, time.time(), near_end=answer.requireSlow, escaped=answer.escFlowCtrl)
        self._next_at = now + wait
        self._tenure.max_offset = answer.maxOffset
        self._reached(answer.currOffset)
        self._count(answer, size)
        if not answer.messages:
            return None
        pack = Pack(answer.messages, answer.currOffset, lag, answer.maxOffset, size)
        self._outstanding.arrived(pack, now)
        return pack

    def _reached(self, offset: int) -> None:
        tenure = self._tenure
        try:
            self._progress.took(offset)
        except GapError as error:
            tenure.ended = error
            raise
        if tenure.ended is not None:  # taken away while the get was under way: the next owner reads it
            raise tenure.ended

    def _count(self, answer: GetMessageResponseB2C, size: int) -> None:
        counters = self.counters
        counters.bytes += size
        if answer.messages:
            counters.packs += 1
            counters.messages += len(answer.messages)
        else:
            counters.empty += 1

    def _missed(self, answer: GetMessageResponseB2C, *, consumed: bool) -> None:
        """A get that read nothing: note what it means, and when to try again."""
        code = answer.errCode
        if code == codes.NOT_FOUND:
            self.counters.misses += 1
            self.caught_up = True
            self._progress.doubt = False
            self._next_at = self._loop.time() + self._meter.missed()
            return
        if code in (codes.NO_NODE, codes.DUPLICATE_PARTITION):
            raise codes.refused(f"reading {self}", code, answer.errMsg)
        if consumed and code != codes.INTERNAL_ERROR:  # refused before anything was read: still to be confirmed
            self._outstanding.state = CONFIRMED
        if code == codes.SPEED_LIMIT:
            self.counters.limited += 1
            self._next_at = self._loop.time() + (answer.minLimitTime / 1000 or NOT_FOUND_WAIT_S)
            return
        raise codes.refused(f"reading {self}", code, answer.errMsg)

    def _refused(self, error: ServerRefused) -> None:
        """Register again, end, or wait."""
        tenure = self._tenure
        if tenure.ended is not None:
            return
        if error.code == codes.NO_NODE:
            log.info("%s: the Broker does not know us any more, registering again", self)
            tenure.registered = False
            return
        if error.code == codes.CERTIFICATE_FAILURE:
            self._auth_failures += 1
        if error.code in (codes.DUPLICATE_PARTITION, codes.PARTITION_OCCUPIED) or self._auth_failures >= AUTH_TRIES:
            tenure.end(LaneRevoked(f"{self} was lost: {error}"))
            return
        log.warning("reading %s goes on later: %s", self, error)
        self._next_at = self._loop.time() + WAITS_S.get(error.code, WAIT_S)

    # --- committing -------------------------------------------------------------------------------------------------

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack at the Broker now, or give it back to be read again. Returns where the next one starts.

        Raises ClusterError. A commit that failed may be repeated; if `fetch` is called instead, a pack that was out, and not
        confirmed otherwise, comes again, whatever the Broker made of the commit. While it is not known what the last get read,
        nothing is confirmed: that would skip what never arrived.
        """
        async with self._turn:
            is_out = self._outstanding.pack is not None
            try:
                return await self._commit(consumed=consumed and not self._progress.doubt)
            except (*_DOUBT, ServerRefused, asyncio.CancelledError) as error:
                is_decided = isinstance(error, ServerRefused) and error.code != codes.INTERNAL_ERROR
                self._progress.rewind |= is_out and not is_decided
                raise

    async def commit_late(self, now: float) -> None:
        """Tell the Broker of a pack that was confirmed a while ago and is followed by no get."""
        outstanding = self._outstanding
        is_due = outstanding.state == CONFIRMED and now - outstanding.confirmed_at >= COMMIT_AFTER_S
        if not is_due or not self.registered or self._turn.locked():
            return
        try:
            await self.commit(consumed=True)
        except (ClusterError, ProtocolError) as error:
            log.info("a commit for %s comes with the next get instead: %s", self, error)

    async def _commit(self, *, consumed: bool) -> int:
        offset = await self._calls.commit(consumed=consumed)
        self.counters.commits += 1
        self._outstanding.forget()
        self._progress.ended_at(offset)
        return offset

    def _end_matters(self) -> bool:
        """Whether to ask where the pack ended, by a commit of its own, so that a jump of the next one is noticed.

        A Broker that deleted what we had not read goes on at its first offset without a word. That can happen only to a reader
        that is far behind or slow, and for those one more request per pack costs nothing.
        """
        pack = self._outstanding.last
        return pack is not None and (pack.lag_bytes > FAR_BEHIND_BYTES or self._loop.time() - self._outstanding.taken_at > AGED_S)

    # --- from first to last -----------------------------------------------------------------------------------------

    async def register(self, read_status: int, offset: int | None = None) -> RegisterResponseB2C:
        """Take the partition at its Broker, from `offset` when there is one. The answer's currOffset is where reading starts.

        Raises ServerRefused (410: another consumer has it), ClusterError.
        """
        return await self._tenure.take_at(read_status, offset)

    async def start_at(self, read_status: int, offset: int) -> None:
        """Like `register`, and exactly at `offset`: when the Broker no longer holds that, `fetch` raises GapError.

        An offset beyond the end, which a Broker that lost its memory may leave behind, becomes the end, and that is logged.
        """
        await self._tenure.take_exactly(read_status, offset)

    async def seek(self, offset: int) -> None:
        """Go on reading at `offset`, also after a GapError. A pack that is out is forgotten. Raises ClusterError, LaneRevoked."""
        async with self._turn:
            if self._tenure.revoked:
                assert self._tenure.ended is not None  # noqa: S101 - for the type checker
                raise self._tenure.ended
            self._tenure.ended = None
            await self._tenure.take_exactly(0, offset)
            self._next_at = 0.0

    def failed(self, code: int) -> None:
        """The Broker said in a heartbeat that it does not count this partition as ours."""
        self._tenure.failed(code)

    def end(self, why: MqbridgeError) -> None:
        """It is over: `fetch` raises `why` from now on."""
        self._tenure.end(why)

    async def release(self) -> None:
        """Give the partition back: a confirmed pack is committed, one that is out will be delivered again."""
        await self._tenure.release()

    async def revoke(self) -> None:
        """It was taken away: wait a moment for the pack that is out, then give the partition back."""
        await self._tenure.revoke()
