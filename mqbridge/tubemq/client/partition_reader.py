"""One get of a partition after the other, and what each answer means.

Where a pack ends is known only from a commit's answer; see `end_matters`.
"""

import asyncio
from collections.abc import Sequence

from mqbridge.errors import ServerRefused, Unreachable
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_pacing import PartitionPacing
from mqbridge.tubemq.client.partition_registration import warn_set_back
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState
from mqbridge.tubemq.client.partition_table import OUT
from mqbridge.tubemq.client.stats import ReadCounters
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pack import Transfered
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C

AGED_S = 5.0
FAR_BEHIND_BYTES = 64 << 20
HELD_PER_MESSAGE = 64
"""Memory that a parsed message takes beyond its bytes in the answer: 40 to 67 were measured, for bodies of 10 B to 1 kB."""


class Pack:
    """What one get returned. `offset` is where the read started; `lag_bytes` are unread after it; `size` is its bytes."""

    __slots__ = ("lag_bytes", "max_offset", "messages", "offset", "size")

    def __init__(self, messages: Sequence[Transfered], offset: int, lag_bytes: int, max_offset: int, size: int) -> None:
        self.messages, self.offset, self.lag_bytes, self.max_offset, self.size = messages, offset, lag_bytes, max_offset, size

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        return self.size + HELD_PER_MESSAGE * len(self.messages)


class PartitionReader:
    """The gets of one partition. `get` is one request: the caller sees to it that no other is under way."""

    def __init__(
        self,
        calls: PartitionCalls,
        state: PartitionState,
        signals: PartitionSignals,
        counters: ReadCounters,
        pacing: PartitionPacing,
    ) -> None:
        self.caught_up = False
        """The last get found nothing."""
        self._calls, self._state, self._signals, self._counters, self._pacing = calls, state, signals, counters, pacing
        self.last: Pack | None = None
        """The pack that was found last, as long as somebody may still want it."""
        self._lag_bytes: int | None = None
        self._taken_at = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def end_matters(self) -> bool:
        """Whether to ask where the last pack ended, by a commit of its own, so that a jump of the next one is noticed.

        A Broker that deleted what we had not read goes on at its first offset without a word. That can happen only to a reader
        that is far behind or slow, and for those one more request per pack costs nothing.
        """
        lag = self._lag_bytes
        return lag is not None and (lag > FAR_BEHIND_BYTES or self._loop.time() - self._taken_at > AGED_S)

    def let_go(self) -> None:
        """The last pack is settled: an idle partition is not to keep its messages in memory."""
        self.last = None

    async def get(self) -> Pack | None:
        """The pack that the Broker reads, if it finds one. Raises ClusterError, GapError, LaneRevoked."""
        consumed = self._state.asked()
        self._signals.settled.clear()
        self._counters.gets += 1
        try:
            answer, messages, size = await self._calls.get(consumed=consumed)
        except Unreachable:  # it was never sent
            self._state.get_refused()
            raise
        except BaseException as error:
            self._state.get_failed(given_up=not isinstance(error, ServerRefused))
            raise
        else:
            if answer.errCode == codes.SUCCESS:
                return self._found(answer, messages, size)
            self._missed(answer)
            return None
        finally:
            if self._state.pack is not OUT:  # else nobody is to be woken
                self._signals.update()

    def _found(self, answer: GetMessageResponseB2C, messages: Sequence[Transfered], size: int) -> Pack | None:
        """A read that worked; it may still have found none of ours."""
        pack = Pack(messages, answer.currOffset, max(answer.currDataDlt, 0), answer.maxOffset, size)
        state, pacing, counters = self._state, self._pacing, self._counters
        self.caught_up = False
        if pacing.is_disturbed or pacing.rules.in_force:
            pacing.found(answer, size, pack.lag_bytes)
        if pack.offset < state.safe:
            warn_set_back(self._calls, state.safe, pack.offset)
        count = len(pack.messages)
        state.found(pack.offset, pack.max_offset, is_empty=not count)
        counters.bytes += size
        if not count:
            counters.empty += 1
            return None
        counters.packs += 1
        counters.messages += count
        self.last, self._lag_bytes, self._taken_at = pack, pack.lag_bytes, self._loop.time()
        return pack

    def _missed(self, answer: GetMessageResponseB2C) -> None:
        """A get that read nothing: note what it means, and when to try again."""
        code = answer.errCode
        if code == codes.NOT_FOUND:
            self._counters.misses += 1
            self.caught_up = True
            self._state.found_nothing()
            self._pacing.found_nothing()
            return
        if code == codes.INTERNAL_ERROR:
            self._state.get_failed(given_up=False)
        else:
            self._state.get_refused()
        if code != codes.SPEED_LIMIT:
            raise codes.refused(f"reading {self._calls}", code, answer.errMsg)
        self._counters.limited += 1
        self._pacing.limited(answer.minLimitTime)
