"""One partition while it is ours: registered at its Broker, read pack by pack.

The Broker remembers a confirmed offset and how far the last get went. A get with lastPackConsumed confirms the pack before;
without it that pack comes again. So one pack is out at a time, it is confirmed as a whole, and that goes with the next get.

When an answer was lost nobody knows whether the Broker has moved on, and confirming would then skip a pack that we never saw.
So after any doubt the next get does not confirm: a pack may come twice, none is left out.

Offsets count bytes of an index that the partitions of a store share: they grow, and say nothing else. Where a pack ends is
known only from a commit's answer; see `_end_matters`.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
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
from mqbridge.tubemq.client.membership import Membership
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import (
    GetMessageResponseB2C,
    RegisterResponseB2C,
    TransferedMessage,
)
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)

CONFIRM_WAIT_S = 3.0
"""How long a partition that is taken away waits for the pack that is out (the Java clients' default)."""
MASTER_TIMEOUT_S = 30.0
"""After this long without a heartbeat a Master has given our partitions away."""
OCCUPIED_RETRY_S = 1.0
REGISTER_TRIES = 5
REGISTER_PAUSE_S = 1.0
AUTH_TRIES = 5
"""Visit tokens change every few minutes and come with heartbeats; five refusals in a row are no coincidence."""
WAITS_S = {codes.MOVED: 0.2, codes.FORBIDDEN: 2.0, codes.CERTIFICATE_FAILURE: 2.0}
WAIT_S = 0.3
"""Before the next get after an error, as the Java clients have it."""
COMMIT_AFTER_S = 0.2
"""A confirmation that no get has taken along by then travels alone."""
AGED_S = 5.0
FAR_BEHIND_BYTES = 64 << 20

NOTHING, OUT, CONFIRMED, REJECTED = range(4)
"""What the Broker waits to hear of: nothing, a pack that is being worked on, one that is done with, one to be read again."""

_DOUBT = (ConnectionLost, RequestTimeout, Unreachable, ProtocolError)


class Pack:
    """What one get returned. `offset` is where the read started; `lag_bytes` are unread after it; `size` is its bytes."""

    __slots__ = ("lag_bytes", "max_offset", "messages", "offset", "size")

    def __init__(self, messages: Sequence[TransferedMessage], offset: int, lag_bytes: int, max_offset: int, size: int) -> None:
        self.messages, self.offset, self.lag_bytes, self.max_offset, self.size = messages, offset, lag_bytes, max_offset, size


class Owner(Protocol):
    """What a partition needs of its consumer."""

    membership: Membership
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

    def __init__(self, owner: Owner, ref: PartitionRef, types: Sequence[str]) -> None:
        self.ref = ref
        self.caught_up = False
        """The last get found nothing."""
        self.registered = False
        self._owner = owner
        self._types = types
        self._session = owner.session_for(ref)
        self._meter = Meter(owner.membership.flow, filtered=bool(types))
        self._state = NOTHING
        self._pack: Pack | None = None
        self._pack_at = self._confirmed_at = 0.0
        self._next_at = 0.0
        self._expected: int | None = None
        """Where the next pack must start, when that is known."""
        self._safe = 0
        """Nothing before this offset is unread or unconfirmed."""
        self._doubt = False
        """A get was sent and its answer has not come."""
        self._auth_failures = 0
        self._ended: MqbridgeError | None = None
        self._stop = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        """No get is under way and no pack is out."""
        self._turn = asyncio.Lock()
        """Held by a get or a commit."""
        self._backoff = Backoff()
        self._loop = asyncio.get_running_loop()
        self._calls = PartitionCalls(owner.membership, ref, types, self._session)

    def __str__(self) -> str:
        return f"{self.ref.topic} {self.ref.name} of group {self._owner.membership.group}"

    @property
    def pack(self) -> Pack | None:
        """The pack that is out."""
        return self._pack if self._state == OUT else None

    @property
    def revoked(self) -> bool:
        """Whether it was taken away or given back."""
        return isinstance(self._ended, LaneRevoked)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def fetch(self) -> Pack:
        """The next pack; waits. When the one before was not confirmed, that one again.

        Survives restarts of Broker and Master. Raises LaneRevoked when the partition was taken away, GapError when the
        Broker went past messages that we never got.
        """
        while True:
            if self._ended is not None:
                raise self._ended
            try:
                await self._pause(self._next_at - self._loop.time())
                if not self.registered:
                    await self._register_again()
                    continue
                async with self._turn:
                    pack = await self._fetch_once()
            except _DOUBT as error:
                log.warning("reading %s goes on later: %s", self, error)
                self._next_at = self._loop.time() + self._backoff.delay()
            except ServerRefused as error:
                self._refused(error)
            else:
                self._backoff.reset()
                if pack is not None:
                    return pack

    async def settled(self) -> None:
        """Wait until the pack that is out is confirmed or rejected. Raises like `fetch`."""
        if self._state == OUT and self._ended is None:
            await self._quiet.wait()
        if self._ended is not None:
            raise self._ended

    def confirm(self) -> None:
        """The pack that is out is consumed. The Broker hears of it with the next get, or soon after."""
        if self._state == OUT:
            self._state = CONFIRMED
            self._confirmed_at = self._loop.time()
            self._quiet.set()

    def reject(self) -> None:
        """The pack that is out was not consumed: `fetch` returns it again."""
        if self._state == OUT:
            self._state = REJECTED
            self._quiet.set()

    async def poll(self) -> Pack | None:
        """One get, without a second try: None when nothing was found, with `caught_up` when there was nothing at all.

        Raises ClusterError as it comes.
        """
        await self._pause(self._next_at - self._loop.time())
        async with self._turn:
            return await self._fetch_once()

    async def commit_late(self, now: float) -> None:
        """Tell the Broker of a pack that was confirmed a while ago and is followed by no get."""
        if self._state != CONFIRMED or not self.registered or self._turn.locked() or now - self._confirmed_at < COMMIT_AFTER_S:
            return
        try:
            await self.commit(consumed=True)
        except ClusterError as error:
            log.info("a commit for %s comes with the next get instead: %s", self, error)

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack at the Broker now, or give it back to be read again. Returns where the next one starts.

        Raises ClusterError; a commit whose answer was lost may be repeated.
        """
        async with self._turn:
            return await self._commit(consumed=consumed)

    async def _commit(self, *, consumed: bool) -> int:
        answer = await self._calls.commit(consumed=consumed)
        if not answer.success:
            raise codes.refused(f"a commit for {self}", answer.errCode, answer.errMsg)
        self._state = NOTHING
        self._quiet.set()
        self._expected = self._safe = answer.currOffset
        return answer.currOffset

    async def _fetch_once(self) -> Pack | None:
        if self._state == CONFIRMED and self._end_matters():
            await self._commit(consumed=True)
        # The state changes only when the get really goes out: cancelled in the queue, a confirmed pack stays confirmed.
        async with self._owner.gets:
            return await self._get_pack(consumed=self._state == CONFIRMED)

    async def _get_pack(self, *, consumed: bool) -> Pack | None:
        self._state = NOTHING
        self._quiet.clear()
        self._doubt = True
        try:
            answer, size = await self._calls.get(consumed=consumed)
            if answer.errCode != codes.SUCCESS:
                self._missed(answer, consumed=consumed)
                return None
            return self._took(answer, size)
        finally:
            if self._state != OUT:
                self._quiet.set()

    def _took(self, answer: GetMessageResponseB2C, size: int) -> Pack | None:
        """A read that worked; it may still have found none of ours, which the Broker has then confirmed by itself."""
        now = self._loop.time()
        lag = max(answer.currDataDlt, 0)
        self.caught_up = False
        self._auth_failures = 0
        self._next_at = now + self._meter.found(size, lag, now, time.time(), near_end=answer.requireSlow)
        self._check_position(answer.currOffset)
        self._expected = None
        self._safe = answer.currOffset
        self._doubt = False
        if self._ended is not None:  # taken away while the get was under way: the next owner reads it
            raise self._ended
        if not answer.messages:
            return None
        pack = self._pack = Pack(answer.messages, answer.currOffset, lag, answer.maxOffset, size)
        self._pack_at = now
        self._state = OUT
        return pack

    def _missed(self, answer: GetMessageResponseB2C, *, consumed: bool) -> None:
        """A get that read nothing: note what it means, and when to try again."""
        code = answer.errCode
        if code == codes.NOT_FOUND:
            self.caught_up = True
            self._doubt = False
            self._next_at = self._loop.time() + self._meter.missed()
            return
        if code in (codes.NO_NODE, codes.DUPLICATE_PARTITION):
            raise codes.refused(f"reading {self}", code, answer.errMsg)
        if consumed and code != codes.INTERNAL_ERROR:  # refused before anything was read: still to be confirmed
            self._state = CONFIRMED
        if code == codes.SPEED_LIMIT:
            self._next_at = self._loop.time() + (answer.minLimitTime / 1000 or NOT_FOUND_WAIT_S)
            return
        raise codes.refused(f"reading {self}", code, answer.errMsg)

    def _refused(self, error: ServerRefused) -> None:
        """Register again, end, or wait."""
        if self._ended is not None:
            return
        if error.code == codes.NO_NODE:
            log.info("%s: the Broker does not know us any more, registering again", self)
            self.registered = False
            return
        if error.code == codes.CERTIFICATE_FAILURE:
            self._auth_failures += 1
        if error.code in (codes.DUPLICATE_PARTITION, codes.PARTITION_OCCUPIED) or self._auth_failures >= AUTH_TRIES:
            self.end(LaneRevoked(f"{self} was lost: {error}"))
            return
        log.warning("reading %s goes on later: %s", self, error)
        self._next_at = self._loop.time() + WAITS_S.get(error.code, WAIT_S)

    def _end_matters(self) -> bool:
        """Whether to ask where the pack ended, by a commit of its own, so that a jump of the next one is noticed.

        A Broker that deleted what we had not read goes on at its first offset without a word. That can happen only to a reader
        that is far behind or slow, and for those one more request per pack costs nothing.
        """
        pack = self._pack
        return pack is not None and (pack.lag_bytes > FAR_BEHIND_BYTES or self._loop.time() - self._pack_at > AGED_S)

    def _check_position(self, offset: int) -> None:
        expected = self._expected
        if expected is not None and offset > expected:
            self._ended = GapError(
                f"{self} lost data: reading was to go on at offset {expected}, the Broker went on at {offset}. "
                "What lies between was deleted before it was read; give the topic a longer retention"
            )
            raise self._ended
        if offset < self._safe:
            log.warning(
                "%s went back from offset %d to %d: the Broker lost what it had not written to disk, or was set back",
                self,
                self._safe,
                offset,
            )

    # --- registration -----------------------------------------------------------------------------------------------

    async def register(self, read_status: int, offset: int = -1) -> RegisterResponseB2C:
        """Take the partition at its Broker, from `offset` when it is not negative.

        Raises ServerRefused (410: another consumer has it), ClusterError.
        """
        for left in range(REGISTER_TRIES - 1, -1, -1):
            try:
                answer = await self._register(read_status, offset)
            except ClusterError as error:
                code = error.code if isinstance(error, ServerRefused) else 0
                # The first try against a dead owner's expired lease only removes that; the second succeeds.
                if not left or (code == codes.PARTITION_OCCUPIED and left < REGISTER_TRIES - 1):
                    raise
                log.info("taking %s failed, trying again: %s", self, error)
                await asyncio.sleep(OCCUPIED_RETRY_S if code == codes.PARTITION_OCCUPIED else REGISTER_PAUSE_S)
            else:
                self._safe, self._state = answer.currOffset, NOTHING
                return answer
        raise AssertionError("unreachable")

    async def _register(self, read_status: int, offset: int) -> RegisterResponseB2C:
        answer = await self._calls.take(read_status, offset)
        if not answer.success:
            raise codes.refused(f"taking {self}", answer.errCode, answer.errMsg)
        self._expected = answer.currOffset
        self._doubt = False
        self.registered = True
        return answer

    async def _register_again(self) -> None:
        """The Broker has forgotten us: it restarted, or did not hear of us for too long.

        A Broker that is stopped in order counts what it handed out last as consumed. Unless that was a pack which we have
        confirmed, reading must go on where we know, by an offset of our own.
        And unless the Master still counts on us, the partition may be another's by now.
        """
        if self._loop.time() - self._owner.seen_at > MASTER_TIMEOUT_S:
            await self._pause(REGISTER_PAUSE_S)
            return
        offset = self._safe if self._doubt or self._state in (OUT, REJECTED) else -1
        answer = await self._register(0, offset)
        self._expected = offset if offset >= 0 else None
        self._check_position(answer.currOffset)
        self._expected = self._safe = answer.currOffset
        self._state = NOTHING
        if self._ended is not None:  # it was given back meanwhile
            await self._give_back()

    def failed(self, code: int) -> None:
        """The Broker said in a heartbeat that it does not count this partition as ours."""
        if code == codes.DUPLICATE_PARTITION:
            self.end(LaneRevoked(f"{self} was lost: another consumer of the group has it"))
        else:
            self.registered = False

    # --- ending -----------------------------------------------------------------------------------------------------

    def end(self, why: MqbridgeError) -> None:
        """It is over: `fetch` raises `why` from now on."""
        if self._ended is None:
            self._ended = why
        self._stop.set()
        self._quiet.set()
        self._owner.dropped(self)

    async def release(self) -> None:
        """Give the partition back: a confirmed pack is committed, one that is out will be delivered again."""
        if self._ended is None or not self.revoked:
            self._ended = LaneRevoked(f"{self} was given back")
        self._stop.set()
        await self._give_back()

    async def revoke(self) -> None:
        """It was taken away: wait a moment for the pack that is out, then give the partition back."""
        if self._ended is None:
            self._ended = LaneRevoked(f"{self} now belongs to another consumer")
        self._stop.set()
        try:
            async with asyncio.timeout(CONFIRM_WAIT_S):
                await self._quiet.wait()
        except TimeoutError:
            log.info("%s: the pack that is out was not confirmed in time and will be delivered again", self)
        await self._give_back()

    async def _give_back(self) -> None:
        if self.registered:
            self.registered = False
            consumed = self._state == CONFIRMED
            self._state = NOTHING
            try:
                await self._calls.give_back(consumed=consumed)
            except ClusterError as error:
                log.info("%s could not be given back, its Broker will notice: %s", self, error)
        self._quiet.set()
        self._owner.dropped(self)

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless it ends meanwhile."""
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        if self._ended is not None:
            raise self._ended
