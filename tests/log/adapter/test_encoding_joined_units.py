"""Units of one message each that share a row: stored as one, delivered one by one."""

import sqlite3
import tracemalloc
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.formats import batch_of_units
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.errors import RemoteProtocolError
from mqbridge.log.adapter import encoding
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.unit_formats import joinable
from mqbridge.message import Batch, Partition, Share, Unit
from mqbridge.rocketmq.mapping.sent_units import unit_of_message
from mqbridge.rocketmq.mapping.unit_format import NAME, RecordFormat
from mqbridge.rocketmq.wire.record import are_records, split_records
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.log.line_units import LINES, install, line_batch, line_unit
from tests.log.store.log_files import change

SOURCE = Partition("other", "t", "0", 0)


def record_unit(number: int, size: int = 1) -> Unit:
    return unit_of_message(b"%d" % number * size, b"", flag=0, sys_flag=0, born_ms=0, reconsume_times=0)


def records(begin: int, end: int) -> list[Unit]:
    return [record_unit(number) for number in range(begin, end)]


async def send(cluster: LogCluster, *units: Unit) -> list[tuple[int, ...]]:
    receipt = await (await outbound_of(cluster)).send(0, Share(batch_of_units(RecordFormat(), units)))
    assert not receipt.failures
    return list(receipt.positions)


async def batches_of(cluster: LogCluster, begin: int, end: int) -> list[Batch]:
    return [batch async for batch in read(cluster, "t", "0", (begin,), (end,))]


def payloads(batches: list[Batch]) -> list[bytes | None]:
    return [message.payload for batch in batches for message in batch.messages]


def row_counts(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "log.db")) as connection:
        return [count for (count,) in connection.execute("SELECT count FROM batch ORDER BY base")]


async def test_units_that_are_sent_together_share_a_row(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    units = records(0, 5)
    assert await send(cluster, *units) == [(0,), (1,), (2,), (3,), (4,)]
    assert await send(cluster, record_unit(5)) == [(5,)]
    assert row_counts(tmp_path) == [5, 1]
    (batch,) = await batches_of(cluster, 0, 6)
    assert [(unit.data, unit.message_count, unit.position, unit.left_out) for unit in batch.units or ()] == [
        (unit.data, 1, (offset,), 0) for offset, unit in enumerate([*units, record_unit(5)])
    ]
    assert [message.position for message in batch.messages] == [(offset,) for offset in range(6)]
    assert payloads([batch]) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(("begin", "end"), [(0, 5), (2, 5), (0, 3), (1, 4), (3, 4), (4, 5)])
async def test_a_part_of_a_row_is_read(open_log: OpenLog, begin: int, end: int) -> None:
    cluster = await open_log()
    await send(cluster, *records(0, 5))
    (batch,) = await batches_of(cluster, begin, end)
    assert (batch.first, batch.next, batch.count) == ((begin,), (end,), end - begin)
    assert [unit.position for unit in batch.units or ()] == [(offset,) for offset in range(begin, end)]
    assert payloads([batch]) == [b"%d" % number for number in range(begin, end)]


async def test_rows_are_limited(open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    size = len(record_unit(0).data)
    monkeypatch.setattr(encoding, "JOINED_ROW_BYTES", 3 * size)
    await send(cluster, *records(0, 7))
    monkeypatch.setattr(encoding, "MAX_ROW_MESSAGES", 2)
    await send(cluster, *records(7, 10))
    await send(cluster, record_unit(1), record_unit(2, 5000), record_unit(3))
    assert row_counts(tmp_path) == [3, 3, 1, 2, 1, 1, 1, 1]
    assert payloads(await batches_of(cluster, 0, 10)) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize(
    "damaged",
    [
        Unit(b"no record", 1, None),
        Unit(b"", 1, None),
        Unit(record_unit(7).data + b"!", 1, None),
        Unit(record_unit(7).data * 2, 3, None),
    ],
)
async def test_no_unit_shares_a_row_with_a_damaged_one(open_log: OpenLog, tmp_path: Path, damaged: Unit) -> None:
    cluster = await open_log()
    await send(cluster, record_unit(0), record_unit(1), damaged, record_unit(2), record_unit(3))
    assert row_counts(tmp_path) == [1, 1, damaged.message_count, 1, 1]
    last = 4 + damaged.message_count
    (batch,) = await batches_of(cluster, 0, last)
    assert damaged._replace(position=(2,)) in [unit._replace(published_ms=None) for unit in batch.units or ()]
    defects = [message.defect is not None for message in batch.messages]
    assert defects == [False, False, *[True] * damaged.message_count, False, False]


async def test_a_unit_of_several_records_is_read_as_these(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    await send(cluster, Unit(record_unit(0).data + record_unit(1).data, 2, None), record_unit(2))
    assert row_counts(tmp_path) == [2, 1]
    (batch,) = await batches_of(cluster, 0, 3)
    assert [unit.message_count for unit in batch.units or ()] == [1, 1, 1]
    assert payloads([batch]) == [b"0", b"1", b"2"]


async def test_a_row_that_was_changed_is_read_as_one_damaged_unit(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format may have other rules in another version."""
    cluster = await open_log()
    await send(cluster, *records(0, 3))

    def fail(_: RecordFormat, __: bytes) -> list[bytes]:
        raise RemoteProtocolError("other rules")

    monkeypatch.setattr(RecordFormat, "split", fail)
    (batch,) = await batches_of(cluster, 1, 3)
    (unit,) = batch.units or ()
    assert (unit.message_count, unit.position, unit.left_out) == (3, (0,), 0b001)
    assert payloads([batch]) == [b"1", b"2"]


async def test_a_lane_acknowledges_inside_a_row(open_log: OpenLog) -> None:
    cluster = await open_log()
    await send(cluster, *records(0, 4))
    inbound, lane = await lane_of(cluster)
    batch = await lane.receive()
    lane.acknowledge(batch, range(1))
    lane.reject(batch)
    again = await lane.receive()
    assert [unit.position for unit in again.units or ()] == [(1,), (2,), (3,)]
    lane.acknowledge(again, range(2))
    await inbound.close()
    assert await cluster.committed("t", "g") == {"0": (3,)}


async def test_units_of_a_sender_have_rows_of_their_own(open_log: OpenLog, tmp_path: Path) -> None:
    """What is stored of a sender is found by the last message of a row, so each unit must be one."""
    cluster = await open_log()
    await cluster.create("t", 1)
    outbound = await cluster.outbound(OutboundSpec("t", sender="s", keep_units=True, stamp_origin=False))
    units = [unit._replace(position=(offset,)) for offset, unit in enumerate(records(0, 3))]
    await outbound.send(0, Share(batch_of_units(RecordFormat(), units, SOURCE)))
    assert row_counts(tmp_path) == [1, 1, 1]
    assert dict(await outbound.resume({0: SOURCE.name}, SOURCE, None)) == {0: (2,)}


async def test_units_of_other_formats_are_not_joined(open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(line_batch(line_unit(0), line_unit(1))))
    assert row_counts(tmp_path) == [1, 1]
    assert joinable(LINES) is None
    assert joinable(NAME) is not None
    assert joinable("unknown") is None


async def test_a_damaged_row_is_a_gap_of_all_its_messages(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    await send(cluster, *records(0, 3))
    await send(cluster, record_unit(3))
    await cluster.close()
    change(tmp_path / "log.db", "UPDATE batch SET records = zeroblob(bytes) WHERE base = 0")
    cluster = await open_log()
    inbound, lane = await lane_of(cluster)
    with pytest.raises(Exception, match="offsets 0 to 2") as raised:
        await lane.receive()
    assert raised.value.resume == (3,)  # type: ignore[attr-defined]
    await inbound.close()


@pytest.mark.parametrize("size", [1, 30, 1000])
async def test_a_batch_counts_the_memory_that_its_units_take(open_log: OpenLog, size: int) -> None:
    cluster = await open_log()
    await send(cluster, *[record_unit(number % 10, size) for number in range(500)])
    await batches_of(cluster, 0, 500)  # so that nothing is measured that is made once
    tracemalloc.start()
    try:
        batches = await batches_of(cluster, 0, 500)
        units = [unit for batch in batches for unit in batch.units or ()]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(units) == 500
    assert 0.8 * used < sum(each.held_bytes for each in batches) < 1.5 * used


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(0, 40), st.binary(max_size=3))
def test_records_are_split_where_their_sizes_say(bodies: list[bytes], cut: int, added: bytes) -> None:
    units = [unit_of_message(body, b"", flag=0, sys_flag=0, born_ms=0, reconsume_times=0).data for body in bodies]
    whole = b"".join(units)
    assert split_records(whole) == units
    assert are_records(units)
    assert are_records([whole]) == (len(units) == 1)
    assert not are_records([*units, b""])
    changed = whole[: len(whole) - cut] + added if cut else whole + added
    with suppress(RemoteProtocolError):
        assert b"".join(split_records(changed)) == changed
