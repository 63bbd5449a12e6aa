"""Sends the gets and commits of a partition, one request at a time, and knows what their responses say about its data.

A get with the flag lastPackConsumed confirms the last pack; a commit does it if no get follows soon. Only the response to a
commit contains the end of a pack; see `needs_pack_end`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from mqbridge.errors import ServerRefused, Unreachable
from mqbridge.tubemq.client.connection.counters import ReadCounters
from mqbridge.tubemq.client.consumer.partition_calls import PartitionCalls
from mqbridge.tubemq.client.consumer.partition_pacing import PartitionPacing
from mqbridge.tubemq.client.consumer.partition_state import CONFIRMED, PartitionState
from mqbridge.tubemq.client.consumer.read_history import ReadHistory, ReadPack
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C
from mqbridge.tubemq.wire.stored_message import StoredMessage

log = logging.getLogger(__name__)

COMMIT_AFTER_S = 0.2
"""If no get request has reported a confirmation to the Broker after this time, it is sent in a commit request."""
SLOW_READER_S = 5.0
FAR_BEHIND_BYTES = 64 << 20
"""If a reader's lag is above FAR_BEHIND_BYTES, or it needs more than SLOW_READER_S for a pack, the Broker may delete data
before the reader gets it: see `needs_pack_end`."""
ANSWER_S = 2.0
"""Brokers answer a get at once. If no response has come after this time, the previous one says nothing about the present."""
POSITION_INTERVAL_S = 5.0
"""How often an idle partition queries its position at the Broker, which moves on past the entries of other partitions."""
MESSAGE_OVERHEAD_BYTES = 64
"""Memory of a parsed message in addition to its bytes in the response. Measured: 40 to 67 bytes for bodies of 10 B to 1 kB."""


class Pack:
    """The messages of one get response.

    The Broker began to read at `offset`, a byte offset in the index of the partition's store. `lag_bytes` is the amount of data
    after the pack, `max_offset` the end of that index, and `size` the length of the response in bytes.
    """

    __slots__ = ("lag_bytes", "max_offset", "messages", "offset", "size")

    def __init__(self, messages: Sequence[StoredMessage], offset: int, lag_bytes: int, max_offset: int, size: int) -> None:
        self.messages = messages
        self.offset = offset
        self.lag_bytes = lag_bytes
        self.max_offset = max_offset
        self.size = size

    @property
    def held_bytes(self) -> int:
        """The estimated size of this pack in memory."""
        return self.size + MESSAGE_OVERHEAD_BYTES * len(self.messages)


class PackReader:
    """Reads one partition. The caller ensures that no other request of the partition is in flight.

    `on_commit` is called after each commit.
    """

    def __init__(
        self, calls: PartitionCalls, state: PartitionState, pacing: PartitionPacing, on_commit: Callable[[], None]
    ) -> None:
        self.calls, self.state = calls, state
        self.counters = ReadCounters()
        self.history = ReadHistory()
        self.found_no_data = False
        """True if the last get was answered, and found no data."""
        self.registered_over = 0
        """The number of the connection over which the partition was registered last; 0 before that."""
        self.last_pack: Pack | None = None
        """The last pack, until it is confirmed or rejected."""
        self._pacing, self._on_commit = pacing, on_commit
        self._is_at_end = False
        """True if the position has reached the end that the store had when a get first found no data; see `_on_position`."""
        self._end_to_reach: int | None = None
        """End of the store when a get first found no data; None after data, and after errors."""
        self._position_at = float("-inf")
        """Event loop time of the last response to a commit."""
        self._sent_at: float | None = None
        """Event loop time at which the get in flight was sent; None if there is none."""
        self._answered_at = float("-inf")
        """Event loop time of the last registration, or of the last response to a get after it."""
        self._lag_bytes: int | None = None
        """Unread data after the last pack, in bytes; None before the first pack."""
        self._delivered_at = 0.0
        """Event loop time at which the last pack was returned."""
        self._confirmed_at = 0.0
        """Event loop time of the last call of `confirm`."""
        self._loop = asyncio.get_running_loop()

    @property
    def needs_pack_end(self) -> bool:
        """True if a commit should query the end of the last pack, so that a gap before the next pack is detected.

        If a Broker has deleted unread data, it continues at its first stored offset without reporting an error. This can happen
        only to a reader that is far behind or slow; for such a reader one more request per pack costs little.
        """
        lag = self._lag_bytes
        return lag is not None and (lag > FAR_BEHIND_BYTES or self._loop.time() - self._delivered_at > SLOW_READER_S)

    @property
    def caught_up(self) -> bool:
        """True if all data was read that the store had a moment ago, as far as the Broker says now.

        A get without data is not enough: a reader with a filter gets none from the Broker's memory, and an old response says
        nothing about an outage that followed.
        """
        is_answered = self._sent_at is None or self._loop.time() - self._sent_at < ANSWER_S
        return self.found_no_data and self._is_at_end and is_answered and not self.state.must_register

    def on_registered(self, start: int) -> None:
        """Handle a registration at the offset `start`, which is a response of the Broker, too."""
        self._answered_at = self._loop.time()
        self.registered_over = self.calls.connection_number
        self.history.begin(start)

    def on_outage(self) -> None:
        """Handle that the Broker does not respond or refuses: what it said before is no longer true."""
        self.found_no_data = self._is_at_end = False
        self._end_to_reach = None

    # --- gets -------------------------------------------------------------------------------------------------------

    async def get(self) -> Pack | None:
        """Send a get request; return the pack, or None if the response has no messages.

        Raises ClusterError, LaneRevoked, and GapError if the Broker skipped unread messages.
        """
        consumed = self.state.on_get_sent()  # True if the previous pack is confirmed: the get tells the Broker so
        self.counters.gets += 1
        self._sent_at = self._loop.time()
        try:
            response, messages, size = await self.calls.get(consumed=consumed)
        except Unreachable:  # the request was never sent
            self.state.on_get_refused()
            self.on_outage()
            raise
        except BaseException as error:
            self.on_outage()
            # Without a response, the Broker may execute the request at any later time.
            self.state.on_get_failed(is_abandoned=not isinstance(error, ServerRefused))
            raise
        finally:
            self._sent_at = None
        if response.errCode == codes.SUCCESS:
            return self._on_data(response, messages, size)
        self._on_error_code(response)
        return None

    def _on_data(self, response: GetMessageResponseB2C, messages: Sequence[StoredMessage], size: int) -> Pack | None:
        """Handle a get that read data; return its pack, or None if no message matches the filter."""
        pack = Pack(messages, response.currOffset, max(response.currDataDlt, 0), response.maxOffset, size)
        state, counters = self.state, self.counters
        now = self._loop.time()
        is_recent, self._answered_at = now - self._answered_at <= SLOW_READER_S, now
        self.on_outage()  # there may be more data
        pacing = self._pacing
        if pacing.is_disturbed or pacing.rules.has_rules:  # otherwise there is no wait to compute or to reset
            pacing.on_data(response, size, pack.lag_bytes)
        if pack.offset < state.safe_offset:  # the Broker reads again what was confirmed, because its data ended before that
            self.warn_set_back(state.safe_offset, pack.offset)
        count = len(pack.messages)
        # The deleted part of a store may be that of other partitions, but not if it had a pack that we have seen.
        is_pack_gone = state.is_redelivery and not (count and self.history.is_last(messages[0].messageId))
        if not state.on_data(pack.offset, pack.max_offset, messages=count, is_recent=is_recent, is_pack_gone=is_pack_gone):
            return None
        self.report_possible_gap()
        counters.bytes += size
        if not count:
            counters.empty += 1
            return None
        counters.packs += 1
        counters.messages += count
        self.history.add(ReadPack(pack.offset, messages[0].messageId, messages[-1].messageId), now)
        self.last_pack, self._delivered_at = pack, now
        self._lag_bytes = pack.lag_bytes
        return pack

    def _on_error_code(self, response: GetMessageResponseB2C) -> None:
        """Handle a response with an error code: no data (404) and flow control (452) delay the next get.

        Raises ServerRefused for all other codes.
        """
        code = response.errCode
        if code == codes.NOT_FOUND:
            self._on_no_data()
            return
        self.on_outage()
        if code == codes.INTERNAL_ERROR:  # other codes refuse the get before the Broker reads
            self.state.on_get_failed(is_abandoned=False)
        else:
            self.state.on_get_refused()
        if code != codes.SPEED_LIMIT:
            raise codes.refusal_error(f"reading {self.calls}", code, response.errMsg)
        self.counters.limited += 1
        self._pacing.on_speed_limit(response.minLimitTime)

    def _on_no_data(self) -> None:
        self.counters.misses += 1
        now = self._loop.time()
        is_recent, self._answered_at = now - self._answered_at <= SLOW_READER_S, now
        self.state.on_no_data(is_recent=is_recent)
        self.found_no_data = True
        self._pacing.on_no_data()

    # --- confirmations ----------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Record that the reader confirmed the delivered pack; sends no request."""
        self.state.confirm()
        self._confirmed_at = self._loop.time()
        self.last_pack = None

    def drop_pack(self) -> None:
        """Forget the settled pack, so that an idle partition does not keep its messages in memory."""
        self.last_pack = None

    def needs_commit(self, now: float) -> bool:
        """Return True if a pack was confirmed COMMIT_AFTER_S ago, no get has reported this yet, and a commit is possible."""
        state = self.state
        has_waited = state.pack_state is CONFIRMED and now - self._confirmed_at >= COMMIT_AFTER_S
        return has_waited and not state.must_register and not state.is_over

    def needs_position(self, now: float) -> bool:
        """Return True if the last get found no data, and the position at the Broker should be queried."""
        return self.found_no_data and (not self._is_at_end or now - self._position_at >= POSITION_INTERVAL_S)

    async def commit(self, *, consumed: bool) -> int:
        """Send a commit: confirm the last pack, or without `consumed` have it delivered again. Return the next offset to read.

        Raises ClusterError.
        """
        try:
            offset, store_end = await self.calls.commit(consumed=consumed)
        except ServerRefused as error:
            if error.code == codes.INTERNAL_ERROR:  # the Broker refuses with any other code before it changes anything
                self.state.on_commit_failed(is_abandoned=False)
            raise
        except Unreachable:  # the request was never sent
            raise
        except BaseException:  # no response: the Broker may execute the request later
            self.state.on_commit_failed(is_abandoned=True)
            raise
        self.counters.commits += 1
        self.state.on_commit(offset)
        self._on_position(offset, store_end)
        self._on_commit()
        return offset

    def _on_position(self, offset: int, store_end: int) -> None:
        """Handle the response to a commit: the Broker continues at `offset`, and the store ends at `store_end`.

        Messages of other partitions may arrive all the time, so the position has to reach an end that was seen before.
        """
        self._position_at = self._loop.time()
        if not self.found_no_data:
            return
        end = store_end if self._end_to_reach is None else self._end_to_reach
        self._is_at_end = offset >= end
        self._end_to_reach = store_end if self._is_at_end else end

    # --- reports ----------------------------------------------------------------------------------------------------

    def report_possible_gap(self) -> None:
        """Log and count deleted data of the store that may have had unread messages of the partition, if the state noted some."""
        if (gap := self.state.take_possible_gap()) is None:
            return
        self.counters.possible_gaps += 1
        log.warning(
            "%s: the Broker has deleted data of the store from offset %d to %d that was not read. The partitions of a store share"
            " its offsets, so it is not known whether the data had messages of this partition; reading goes on at offset %d",
            self.calls,
            gap[0],
            gap[1],
            gap[1],
        )

    def warn_set_back(self, confirmed_offset: int, offset: int) -> None:
        """Log that the Broker continues at `offset`, although all messages before `confirmed_offset` had been confirmed."""
        reason = (
            "the Broker lost data or offsets that were not on disk yet, or somebody reset the group's offset;"
            " messages may be delivered again"
        )
        log.warning("%s: reading goes back from offset %d to %d: %s", self.calls, confirmed_offset, offset, reason)
