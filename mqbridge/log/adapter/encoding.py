"""Encodes a share as rows of the table `batch`: units as they are, everything else as our own records.

Neighbouring units of one message each share a row if their format tells where each one ends (`JoinableFormat`).
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

from mqbridge.adapter.formats import MAX_UNIT_MESSAGES, JoinableFormat
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.receipts import refused_whole
from mqbridge.errors import ClusterError, Failure, LocalProtocolError, MappingError
from mqbridge.log.adapter.unit_formats import STORED_FORMATS, decode_unit, joinable
from mqbridge.log.store.new_row import NewRow
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.wire.records import encode_record, encode_row
from mqbridge.mapping.sequences import sequence_of
from mqbridge.message import Message, Position, Share, Unit, format_position

MAX_ROW_BYTES = 512 << 10
MAX_ROW_MESSAGES = 1000
"""Maximum bytes and messages of a row of our own records, which is always read as a whole. A larger send takes several rows."""
JOINED_ROW_BYTES = 64 << 10
"""Maximum bytes of a row of several units: whoever wants one of its messages reads all of it."""


Range = tuple[Position, Position]
"""The positions of the first and of the last message of a row in its source."""


class EncodedShare:
    """The rows of a share, the indexes of their messages, and the failures of those that cannot be stored."""

    __slots__ = ("_share_count", "count", "failures", "ranges", "rows", "size")

    def __init__(self, count: int) -> None:
        """`count` is the number of messages of the share."""
        self.rows: list[NewRow] = []
        self.ranges: list[Range] = []
        """The positions of the first and the last message of each row; empty if there is no sender."""
        self.failures: list[MessageFailure] = []
        self.size = 0
        """Bytes of all rows."""
        self.count = 0
        """Number of messages that were added, with those that have failed."""
        self._share_count = count

    def add(self, rows: list[NewRow], count: int, failures: Sequence[MessageFailure] = (), ranges: Sequence[Range] = ()) -> None:
        """Add the rows of the next `count` messages, except for those that have failed."""
        self.rows += rows
        self.ranges += ranges
        self.failures += failures
        self.size += sum([len(row[1]) for row in rows])
        self.count += count

    def fail_next(self, count: int, reason: str) -> None:
        """Refuse the next `count` messages."""
        self.add([], count, [MessageFailure(self.count + index, Failure.REFUSED, reason) for index in range(count)])

    def refuse(self, failures: Sequence[MessageFailure]) -> None:
        """Store nothing of the share, because of these failures."""
        self.rows, self.failures, self.size = [], list(failures), 0

    @property
    def indexes(self) -> Sequence[int]:
        """The indexes of the messages that the rows contain."""
        if not self.failures:
            return range(self._share_count)
        failed = {failure.index for failure in self.failures}
        return [index for index in range(self._share_count) if index not in failed]

    @property
    def receipt(self) -> Receipt:
        """The receipt if no message can be stored."""
        return Receipt([()] * self._share_count, self.failures)


class ShareEncoder:
    """Encodes the shares of one outbound."""

    def __init__(self, config: LogSettings, spec: OutboundSpec) -> None:
        self._config, self._sender, self._is_whole = config, spec.sender, spec.whole_shares
        self._keeps_units = spec.keep_units
        self._origin_prefix_of = spec.origin_of

    def encode(self, share: Share) -> EncodedShare:
        """Return the rows of a share.

        Raises ClusterError (FATAL) for a number of messages that no unit has, and, if there is a sender, for positions that do
        not ascend, or that cannot become sequences although there are no origins by which the messages would be found.
        """
        batch, prefix = share.batch, self._origin_prefix_of(share.batch.partition)
        has_sequence = self._sender is not None and bool(batch.first)
        encoded = EncodedShare(share.count)
        is_whole_batch = share.indexes is None and not share.is_edited
        is_kept = self._keeps_units and prefix is None and is_whole_batch
        if is_kept and batch.has_units and batch.format in STORED_FORMATS:
            self._encode_units(encoded, batch.units or (), batch.format, has_sequence=has_sequence)
        else:
            self._encode_messages(encoded, share.messages, prefix, has_sequence=has_sequence)
        if encoded.count != share.count:
            raise LocalProtocolError(f"a batch of {share.count} messages has units of {encoded.count}")
        if has_sequence:
            self._check_order(encoded.ranges)
            _number_rows(encoded, has_origins=prefix is not None)
        self._check(encoded)
        return encoded

    def _encode_units(self, encoded: EncodedShare, units: Sequence[Unit], unit_format: str, *, has_sequence: bool) -> None:
        """Add a row for each unit. A unit of which messages are left out is decoded: it must not be stored whole."""
        max_bytes = self._config.max_message_bytes
        if not has_sequence and (rows := _rows_of(units, unit_format, max_bytes)) is not None:
            encoded.add(rows, sum([row[0] for row in rows]))
            return
        for unit in units:
            if not 0 < unit.message_count <= MAX_UNIT_MESSAGES:
                raise ClusterError(f"a unit has 1 to {MAX_UNIT_MESSAGES} messages", Failure.FATAL)
        for unit in units:
            if unit.left_out:
                messages = [m for k, m in enumerate(decode_unit(unit_format, unit)) if not unit.left_out >> k & 1]
                self._encode_messages(encoded, messages, None, has_sequence=has_sequence)
            elif len(unit.data) > max_bytes:
                problem = f"the unit has {len(unit.data)} bytes; the log accepts at most {max_bytes} (max_message_bytes)"
                encoded.fail_next(unit.message_count, problem)
            else:
                row = NewRow(unit.message_count, unit.data, unit_format)
                encoded.add([row], unit.message_count, ranges=[_range_of(unit)] if has_sequence else ())

    def _encode_messages(
        self, encoded: EncodedShare, messages: Sequence[Message], prefix: str | None, *, has_sequence: bool
    ) -> None:
        """Add our own records of these messages, and failures of those that cannot be stored."""
        records: list[bytes] = []
        failures: list[MessageFailure] = []
        for index, message in enumerate(messages, begin := encoded.count):
            try:
                records.append(
                    self._encode_message(
                        message, message.origin if prefix is None else prefix + format_position(message.position)
                    )
                )
            except MappingError as error:
                failures.append(MessageFailure(index, Failure.REFUSED, str(error)))
        cuts = _cut(records)
        ranges = list[Range]()
        if has_sequence:
            positions = self._positions(messages, [failure.index - begin for failure in failures])
            ranges = [(positions[first], positions[end - 1]) for first, end in cuts]
        rows = [NewRow(end - first, encode_row(records[first:end])) for first, end in cuts]
        encoded.add(rows, len(messages), failures, ranges)

    def _positions(self, messages: Sequence[Message], refused: Sequence[int]) -> list[Position]:
        """Return the positions of all messages but the refused ones. Raises ClusterError if they do not ascend."""
        left_out = set(refused)
        positions = [message.position for index, message in enumerate(messages) if index not in left_out]
        if any(len(earlier) != len(later) or later <= earlier for earlier, later in pairwise(positions)):
            raise self._order_error()
        return positions

    def _encode_message(self, message: Message, origin: str | None) -> bytes:
        """Return the record of a message. Raises MappingError if it cannot be stored."""
        if message.defect is not None:
            raise MappingError(f"it could not be read: {message.defect}")
        record = encode_record(message, origin)
        if len(record) > (max_bytes := self._config.max_message_bytes):
            raise MappingError(f"the message has {len(record)} bytes; the log accepts at most {max_bytes} (max_message_bytes)")
        return record

    def _check_order(self, ranges: Sequence[Range]) -> None:
        """Raise ClusterError (FATAL) unless the positions of the rows ascend, and have the same number of components."""
        reached: Position = ()
        for first, last in ranges:
            if not reached < first <= last or len(reached or first) != len(first):
                raise self._order_error()
            reached = last

    def _order_error(self) -> ClusterError:
        return ClusterError(f"the positions of messages that {self._sender!r} sends must ascend", Failure.FATAL)

    def _check(self, encoded: EncodedShare) -> None:
        """Refuse a share that would wait for ever, and with `whole_shares` one with a message that cannot be stored."""
        max_bytes = self._config.max_bytes
        if max_bytes is not None and encoded.size > max_bytes // 2:
            size = encoded.size
            problem = f"the send has {size} bytes; the log accepts at most a half of its `max_bytes` ({max_bytes}) at once"
            encoded.refuse([MessageFailure(index, Failure.REFUSED, problem) for index in range(encoded.count)])
        elif encoded.failures and self._is_whole:
            encoded.refuse(refused_whole(encoded.count, encoded.failures).failures)


_make_row = partial(tuple.__new__, NewRow)
"""Makes a row of its values; `NewRow(...)` takes twice the time."""


def _rows_of(units: Sequence[Unit], unit_format: str, max_bytes: int) -> list[NewRow] | None:
    """Return the rows of units that are all stored as they are; None if one of them is not. Called for each single message."""
    if len(units) > 1 and (joins := joinable(unit_format)) is not None:
        joined = _joined(units, joins, unit_format, max_bytes)
        if joined is not None:
            return joined
    rows: list[NewRow] = []
    for data, count, _, _, left_out in units:
        if left_out or not 0 < count <= MAX_UNIT_MESSAGES or len(data) > max_bytes:
            return None
        rows.append(_make_row((count, data, unit_format, None, None)))
    return rows


def _joined(units: Sequence[Unit], joins: JoinableFormat, unit_format: str, max_bytes: int) -> list[NewRow] | None:
    """Return rows of several units each, because a row takes 5 us besides its bytes; None if one of them has to be alone."""
    contents, counts, _, _, left_out = zip(*units, strict=True)
    if any(left_out) or counts.count(1) != len(counts) or not joins.are_whole(contents) or max(map(len, contents)) > max_bytes:
        return None
    ends = [0, *accumulate(map(len, contents))]
    rows: list[NewRow] = []
    begin = 0
    while begin < len(contents):
        end = bisect_right(ends, ends[begin] + JOINED_ROW_BYTES) - 1
        end = min(max(end, begin + 1), begin + MAX_ROW_MESSAGES)
        rows.append(_make_row((end - begin, b"".join(contents[begin:end]), unit_format, None, None)))
        begin = end
    return rows


def _range_of(unit: Unit) -> Range:
    """Return the positions of the first and the last message of a unit; both () if it has none, which is refused."""
    if not unit.position:
        return (), ()
    *leading, first = unit.position
    return unit.position, (*leading, first + unit.message_count - 1)


def _number_rows(encoded: EncodedShare, *, has_origins: bool) -> None:
    """Write the sequences into the rows; if a position does not fit, the messages are found by their origins.

    Raises ClusterError (FATAL) if they have none.
    """
    try:
        sequences = [(sequence_of(first), sequence_of(last)) for first, last in encoded.ranges]
    except ClusterError:
        if not has_origins:
            raise
        return
    numbered = zip(encoded.rows, sequences, strict=True)
    encoded.rows = [row._replace(first=first, sequence=last) for row, (first, last) in numbered]


def _cut(records: list[bytes]) -> list[tuple[int, int]]:
    """Return the begin and the end of each row of at most MAX_ROW_BYTES and MAX_ROW_MESSAGES into which records are cut."""
    if len(records) <= MAX_ROW_MESSAGES and sum(map(len, records)) <= MAX_ROW_BYTES:
        return [(0, len(records))] if records else []
    cuts: list[tuple[int, int]] = []
    begin = size = 0
    for index, record in enumerate(records):
        if index > begin and (size + len(record) > MAX_ROW_BYTES or index - begin == MAX_ROW_MESSAGES):
            cuts.append((begin, index))
            begin, size = index, 0
        size += len(record)
    return [*cuts, (begin, len(records))]
