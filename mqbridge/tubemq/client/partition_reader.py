"""Sends the get requests of a partition, one at a time, and interprets the responses.

Only the response to a commit contains the end of a pack; see `needs_pack_end`.
"""

import asyncio
from collections.abc import Sequence

from mqbridge.errors import ServerRefused, Unreachable
from mqbridge.tubemq.client.counters import ReadCounters
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_pacing import PartitionPacing
from mqbridge.tubemq.client.partition_registration import warn_set_back
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState
from mqbridge.tubemq.client.partition_transitions import DELIVERED
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C
from mqbridge.tubemq.wire.stored_message import StoredMessage

SLOW_READER_S = 5.0
FAR_BEHIND_BYTES = 64 << 20
HELD_PER_MESSAGE = 64
"""Memory in bytes of a parsed message, besides its bytes in the response. Measured: 40 to 67 for bodies of 10 B to 1 kB."""


class Pack:
    """The messages of one get request.

    `offset` is where the read started, `lag_bytes` the bytes stored behind the pack, `max_offset` the end of the store's index,
    and `size` the bytes of the response.
    """

    __slots__ = ("lag_bytes", "max_offset", "messages", "offset", "size")

    def __init__(self, messages: Sequence[StoredMessage], offset: int, lag_bytes: int, max_offset: int, size: int) -> None:
        self.messages, self.offset, self.lag_bytes, self.max_offset, self.size = messages, offset, lag_bytes, max_offset, size

    @property
    def held_bytes(self) -> int:
        """The size of this pack in memory, estimated."""
        return self.size + HELD_PER_MESSAGE * len(self.messages)


class PartitionReader:
    """The get requests of one partition. The caller of `get` ensures that no other request is in flight."""

    def __init__(
        self,
        calls: PartitionCalls,
        state: PartitionState,
        signals: PartitionSignals,
        counters: ReadCounters,
        pacing: PartitionPacing,
    ) -> None:
        self.caught_up = False
        """True if the last get found no data."""
        self._calls, self._state, self._signals, self._counters, self._pacing = calls, state, signals, counters, pacing
        self.last: Pack | None = None
        """The last pack, until it is settled."""
        self._lag_bytes: int | None = None
        self._delivered_at = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def needs_pack_end(self) -> bool:
        """True if a commit should query the end of the last pack, so that a gap before the next pack is detected.

        A Broker that deleted unread data continues at its first offset without an error. This can happen only to a reader that is
        far behind or slow. For such a reader the cost of one more request per pack does not matter.
        """
        lag = self._lag_bytes
        return lag is not None and (lag > FAR_BEHIND_BYTES or self._loop.time() - self._delivered_at > SLOW_READER_S)

    def drop_pack(self) -> None:
        """Drop the settled pack: an idle partition must not keep its messages in memory."""
        self.last = None

    async def get(self) -> Pack | None:
        """Send a get request. Return the pack, or None if it has no messages. Raises ClusterError, GapError, LaneRevoked."""
        consumed = self._state.get_sent()
        self._signals.settled.clear()
        self._counters.gets += 1
        try:
            answer, messages, size = await self._calls.get(consumed=consumed)
        except Unreachable:  # the request was never sent
            self._state.get_refused()
            raise
        except BaseException as error:
            self._state.get_failed(is_abandoned=not isinstance(error, ServerRefused))
            raise
        else:
            if answer.errCode == codes.SUCCESS:
                return self._found(answer, messages, size)
            self._missed(answer)
            return None
        finally:
            if self._state.pack is not DELIVERED:  # no task waits for the change to DELIVERED
                self._signals.update()

    def _found(self, answer: GetMessageResponseB2C, messages: Sequence[StoredMessage], size: int) -> Pack | None:
        """Handle a successful read; return None if no message matches the filter."""
        pack = Pack(messages, answer.currOffset, max(answer.currDataDlt, 0), answer.maxOffset, size)
        state, pacing, counters = self._state, self._pacing, self._counters
        self.caught_up = False
        if pacing.is_disturbed or pacing.rules.has_rules:
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
        self.last, self._lag_bytes, self._delivered_at = pack, pack.lag_bytes, self._loop.time()
        return pack

    def _missed(self, answer: GetMessageResponseB2C) -> None:
        """Handle a get that read nothing: update state and pacing. Raises ServerRefused for most error codes."""
        code = answer.errCode
        if code == codes.NOT_FOUND:
            self._counters.misses += 1
            self.caught_up = True
            self._state.found_nothing()
            self._pacing.found_nothing()
            return
        if code == codes.INTERNAL_ERROR:
            self._state.get_failed(is_abandoned=False)
        else:
            self._state.get_refused()
        if code != codes.SPEED_LIMIT:
            raise codes.refusal_error(f"reading {self._calls}", code, answer.errMsg)
        self._counters.limited += 1
        self._pacing.limited(answer.minLimitTime)
