"""Units of other systems: stored and delivered as they are, beside our own records."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mqbridge.adapter import registry
from mqbridge.adapter.formats import MAX_UNIT_MESSAGES
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.log.adapter import unit_formats
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store import append
from mqbridge.log.store.check import check
from mqbridge.log.store.extents import Extent, rebuilt_extent, write_extents
from mqbridge.log.store.schema import BatchStamp, batch_crc
from mqbridge.mapping.raw_form import RAW_FORM
from mqbridge.message import NO_SOURCE, Batch, Message, Share, Unit
from tests.conformance.arena import numbered
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.log.line_units import LINES, LineFormat, install, line_batch, line_unit
from tests.log.store.log_files import change, no_report


@pytest.fixture(autouse=True)
def line_format(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


async def batches_of(cluster: LogCluster, begin: int = 0, end: int | None = None) -> list[Batch]:
    if end is None:
        end = (await cluster.bounds("t", "0"))["0"].next[0]
    return [batch async for batch in read(cluster, "t", "0", (begin,), (end,))]


def payloads(batches: list[Batch]) -> list[bytes | None]:
    return [message.payload for batch in batches for message in batch.messages]


async def send(outbound: Outbound, *units: Unit) -> None:
    assert not (await outbound.send(0, Share(line_batch(*units)))).failures


async def test_units_are_rows_of_their_own_and_messages_between_them_end_batches(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    receipt = await outbound.send(0, Share(line_batch(line_unit(0, 1), line_unit(2))))
    assert receipt.positions == [(0,), (1,), (2,)]
    await outbound.send(0, Share(Batch.of(numbered(3, 5))))
    await send(outbound, line_unit(5))
    batches = await batches_of(cluster)
    assert [(batch.format, batch.count, batch.has_units) for batch in batches] == [
        (LINES, 3, True),
        ("log.rows", 2, False),
        (LINES, 1, True),
    ]
    units = batches[0].units
    assert units is not None
    assert [(unit.data, unit.message_count, unit.position, unit.left_out) for unit in units] == [
        (b"0\n1", 2, (0,), 0),
        (b"2", 1, (2,), 0),
    ]
    assert units[0].published_ms == batches[0].published_ms
    assert batches[0].published_ms is not None
    assert payloads(batches) == [b"0", b"1", b"2", b"000003", b"000004", b"5"]


async def test_nothing_is_decoded_before_messages_are_used(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    monkeypatch.setattr(LineFormat, "decode", None)
    outbound = await outbound_of(cluster)
    await send(outbound, line_unit(0, 1))
    (batch,) = await batches_of(cluster)
    assert not batch.is_decoded
    other = await outbound_of(cluster, "copy", stamp_origin=False)
    assert not (await other.send(0, Share(batch))).failures


async def test_only_our_own_rows_are_replaced_by_their_messages(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    await send(outbound, line_unit(0, 1))
    await outbound.send(0, Share(Batch.of(numbered(2, 4))))
    unit, rows = await batches_of(cluster)
    assert unit.keep_messages() == unit.held_bytes + len(b"01")
    assert rows.keep_messages() == rows.held_bytes
    assert [batch.data is None for batch in (unit, rows)] == [False, True]
    assert payloads([unit, rows]) == [b"0", b"1", b"000002", b"000003"]


async def test_a_range_inside_units_leaves_messages_out(open_log: OpenLog) -> None:
    cluster = await open_log()
    await send(await outbound_of(cluster), line_unit(0, 1, 2), line_unit(3), line_unit(4, 5, 6))
    for begin in range(8):
        for end in range(begin + 1, 8):
            batches = await batches_of(cluster, begin, end)
            expected = list(range(begin, min(end, 7)))
            assert payloads(batches) == [b"%d" % number for number in expected]
            units = [unit for batch in batches for unit in batch.units or ()]
            kept = [
                unit.position[0] + index
                for unit in units
                for index in range(unit.message_count)
                if not unit.left_out >> index & 1
            ]
            assert kept == expected
            assert not any(unit.left_out >> unit.message_count for unit in units)


async def test_a_unit_of_which_messages_are_left_out_is_stored_as_messages(open_log: OpenLog) -> None:
    """As a whole it would bring back messages that are not in the batch; the other units stay as they are."""
    cluster = await open_log()
    await send(await outbound_of(cluster), line_unit(0, 1, 2), line_unit(3, 4), line_unit(5, 6))
    (batch,) = await batches_of(cluster, 1, 6)
    outbound = await outbound_of(cluster, "copy", stamp_origin=False)
    receipt = await outbound.send(0, Share(batch))
    assert receipt.positions == [(offset,) for offset in range(5)]
    copied = [batch async for batch in read(cluster, "copy", "0", (0,), (5,))]
    assert [(batch.format, batch.count) for batch in copied] == [("log.rows", 2), (LINES, 2), ("log.rows", 1)]
    assert payloads(copied) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_unit_above_the_limit_is_refused_whole(open_log: OpenLog) -> None:
    cluster = await open_log(max_message_bytes=10)
    await cluster.create("t", 1)
    units = line_unit(0, 1), line_unit(*range(2, 9)), line_unit(9)
    outbound = await cluster.outbound(OutboundSpec("t", keep_units=True))
    receipt = await outbound.send(0, Share(line_batch(*units)))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [
        (index, Failure.REFUSED) for index in range(2, 9)
    ]
    assert "13 bytes" in receipt.failures[0].reason
    assert receipt.positions == [(0,), (1,), *[()] * 7, (2,)]
    whole = await cluster.outbound(OutboundSpec("t", whole_shares=True, keep_units=True))
    receipt = await whole.send(0, Share(line_batch(*units)))
    assert len(receipt.failures) == 10
    assert receipt.highest_position == ()
    assert (await cluster.bounds("t"))["0"].next == (3,)


async def test_a_thousand_units_are_one_append(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    groups = []
    original = append.write_group

    def count(group, *arguments):  # type: ignore[no-untyped-def]
        groups.append([len(each.rows) for each in group])
        return original(group, *arguments)

    monkeypatch.setattr(append, "write_group", count)
    receipt = await outbound.send(0, Share(line_batch(*(line_unit(number) for number in range(1000)))))
    assert receipt.positions == [(offset,) for offset in range(1000)]
    assert groups == [[1000]]


@pytest.mark.parametrize("count", [0, -1, MAX_UNIT_MESSAGES + 1, (1 << 63) - 1])
async def test_a_number_of_messages_that_no_unit_has_fails_its_send_alone(open_log: OpenLog, count: int) -> None:
    cluster = await open_log()
    outbound, other = await outbound_of(cluster), await outbound_of(cluster, "u")
    units = [Unit(b"x", count, 1), Unit(b"y", 5, 1)]
    batch = Batch(NO_SOURCE, list, count=count + 5, size=2, first=(), next=(), format=LINES, units=lambda: units)
    send, sent = outbound.send(0, Share(batch)), other.send(0, Share(line_batch(line_unit(1))))
    with pytest.raises(ClusterError, match="1 to 100000 messages") as raised:
        await send
    assert raised.value.failure is Failure.FATAL
    assert not (await sent).failures


async def test_a_stored_number_of_messages_that_no_unit_has_is_damage(open_log: OpenLog) -> None:
    """A reader would need memory for each of the messages, which do not exist."""
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    store, partition, count = cluster.store, outbound._partition_ids[0], 1 << 40
    stamp = BatchStamp(1, 1, LINES)
    row = (partition, 0, count, 1, *stamp, batch_crc(partition, 0, count, stamp, b"x"), b"x")
    await store.write(lambda connection: connection.execute("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row))
    await store.write(write_extents, [(partition, Extent(0, count, 1))])
    assert not (await outbound.send(0, Share(line_batch(line_unit(1))))).failures
    reader = await cluster.reader("t", "0", (0,))
    with pytest.raises(GapError) as gap:
        await reader.receive()
    assert gap.value.resume == (count,)
    assert (await store.read(rebuilt_extent, partition)).next == count + 1
    await cluster.close()
    assert "1099511627776 messages" in check(store.config.path, no_report).partitions[0].problems[0]


async def test_a_format_that_is_not_installed_is_a_defect_with_the_bytes(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await open_log()
    await send(await outbound_of(cluster), line_unit(0, 1, 2))
    monkeypatch.undo()
    (batch,) = await batches_of(cluster)
    assert [(message.payload, message.position, message.property(RAW_FORM)) for message in batch.messages] == [
        (b"0\n1\n2", (0,), LINES),
        (b"", (1,), LINES),
        (b"", (2,), LINES),
    ]
    for message in batch.messages:
        assert message.defect is not None
        assert "the format 'lines.unit' of the stored unit is not known" in message.defect
        assert "install the adapter of 'lines'" in message.defect
    outbound = await outbound_of(cluster, "copy")
    assert LINES not in outbound.formats
    assert len((await outbound.send(0, Share(batch))).failures) == 3


class Broken:
    """An installed adapter with a fault."""

    name = "lines"

    def __init__(self) -> None:
        self.loads = 0

    def load(self) -> None:
        self.loads += 1
        raise RuntimeError("a fault of the package")


async def test_an_adapter_that_cannot_be_loaded_does_not_end_the_reading(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken()
    cluster = await open_log()
    await send(await outbound_of(cluster), line_unit(0))
    monkeypatch.setattr(registry, "entry_points", lambda **_: [broken])
    monkeypatch.setattr(unit_formats, "FORMATS", {})
    monkeypatch.setattr(unit_formats, "_problems", {})
    for cluster in (await open_log(), await open_log()):
        (batch,) = await batches_of(cluster)
        assert "a fault of the package" in (batch.messages[0].defect or "")
        assert LINES not in (await outbound_of(cluster)).formats
    assert broken.loads == 1


async def test_adapters_are_loaded_in_a_thread_and_only_for_units(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need hundreds of milliseconds. Importing the adapter of the log loads none of the others."""
    threads = list[int]()
    cluster = await open_log()
    await send(await outbound_of(cluster), line_unit(0, 1))
    monkeypatch.setattr(unit_formats, "FORMATS", {})
    monkeypatch.setattr(unit_formats, "_problems", {})
    monkeypatch.setattr(unit_formats, "load_formats", lambda: threads.append(threading.get_ident()))
    await cluster.create("plain", 1)
    await (await cluster.outbound(OutboundSpec("plain"))).send(0, Share(Batch.of(numbered(0, 3))))
    assert [batch.count async for batch in read(cluster, "plain", "0", (0,), (3,))] == [3]
    assert threads == []
    await cluster.outbound(OutboundSpec("t", keep_units=True))
    assert len(threads) == 1
    await batches_of(cluster)
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    script = "import sys, mqbridge.log.adapter.registration; print([m for m in sys.modules if m.startswith('mqbridge.pulsar')])"
    found = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(("data", "problem"), [(b"wrong", "ZeroDivisionError"), (b"0", "to 1 messages, but has 2")])
async def test_an_adapter_that_breaks_its_promise_makes_defects(open_log: OpenLog, data: bytes, problem: str) -> None:
    cluster = await open_log()
    await send(await outbound_of(cluster), Unit(data, 2, None), line_unit(2))
    (batch,) = await batches_of(cluster)
    assert [message.payload for message in batch.messages] == [data, b"", b"2"]
    assert problem in (batch.messages[0].defect or "")
    assert batch.messages[2].defect is None


async def test_a_damaged_unit_is_a_gap(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for number in range(3):
        await send(outbound, line_unit(number))
    await cluster.close()
    change(tmp_path / "log.db", "UPDATE batch SET format = 'lines.other' WHERE base = 1")
    cluster = await open_log()
    inbound, lane = await lane_of(cluster)
    assert [message.payload for message in (await lane.receive()).messages] == [b"0"]
    with pytest.raises(Exception, match="offset 1") as raised:
        await lane.receive()
    assert raised.value.resume == (2,)  # type: ignore[attr-defined]
    await inbound.close()


async def test_a_lane_rejects_and_acknowledges_inside_a_unit(open_log: OpenLog) -> None:
    cluster = await open_log()
    await send(await outbound_of(cluster), line_unit(0, 1, 2), line_unit(3, 4))
    inbound, lane = await lane_of(cluster)
    batch = await lane.receive()
    lane.acknowledge(batch, range(2))
    lane.reject(batch)
    again = await lane.receive()
    assert [unit.left_out for unit in again.units or ()] == [0b011, 0]
    assert payloads([again]) == [b"2", b"3", b"4"]
    lane.acknowledge(again, range(2))
    await inbound.close()
    assert await cluster.committed("t", "g") == {"0": (4,)}


def test_all_installed_formats_are_stored() -> None:
    assert "log.rows" not in unit_formats.STORED_FORMATS
    assert list(unit_formats.STORED_FORMATS) == sorted(unit_formats.STORED_FORMATS)
    assert len(unit_formats.STORED_FORMATS) == len(list(unit_formats.STORED_FORMATS))
    assert all(name in unit_formats.STORED_FORMATS for name in unit_formats.STORED_FORMATS)
    assert Message not in unit_formats.STORED_FORMATS  # type: ignore[comparison-overlap]
