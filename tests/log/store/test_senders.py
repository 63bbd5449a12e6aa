"""Sends of a named sender are stored once, whoever repeats them."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.log.store import append, database
from mqbridge.log.store.backup import backup
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.database import WAL_BYTES
from mqbridge.log.store.senders import ROWS_OF_SENDER
from mqbridge.mapping.sequences import sequence_of
from mqbridge.message import Batch, Message, Partition, Position, Share
from tests.conformance.arena import numbered
from tests.log.conftest import OpenLog
from tests.log.line_units import SDK, install, line_batch, line_unit, sent_by_sdk
from tests.log.store.log_files import change, no_report
from tests.patience import PATIENCE_S

PACKS = Partition("tube", "a", "1:0", 0)


@pytest.fixture(autouse=True)
def line_format(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


async def sdk_outbound(cluster: LogCluster, *, stamp_origin: bool = False, partitions: int = 1) -> LogOutbound:
    await cluster.create("t", partitions)
    outbound = await cluster.outbound(OutboundSpec("t", sender="sdk", stamp_origin=stamp_origin, keep_units=True))
    assert isinstance(outbound, LogOutbound)
    return outbound


def messages_of(begin: int, end: int) -> Share:
    """Make a share of our own records with these positions of the sender's source."""
    return Share(Batch.of(numbered(begin, end), SDK))


async def stored(cluster: LogCluster) -> list[int]:
    bounds = (await cluster.bounds("t", "0"))["0"]
    batches = [batch async for batch in read(cluster, "t", "0", bounds.first, bounds.next)]
    return [int(message.payload or b"-1") for batch in batches for message in batch.messages]


def reasons(receipt: Receipt) -> set[str]:
    return {failure.reason for failure in receipt.failures}


@pytest.mark.parametrize("make", [lambda: sent_by_sdk((5, 3), (8, 1)), lambda: messages_of(5, 9)])
async def test_a_repeated_send_is_stored_once(open_log: OpenLog, make) -> None:  # type: ignore[no-untyped-def]
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    assert (await outbound.send(0, make())).positions == [(0,), (1,), (2,), (3,)]
    for again in (outbound, await sdk_outbound(cluster), await sdk_outbound(await open_log())):
        receipt = await again.send(0, make())
        assert not receipt.failures
        assert receipt.positions == [()] * 4
        assert receipt.highest_position == ()
    assert await stored(cluster) == [5, 6, 7, 8]
    assert await outbound.resume(SDK) == {0: (8,)}


def packed(*positions: Position, source: Partition = PACKS) -> Share:
    """Make a share of our own records with positions of several components; the payloads are the last components."""
    return Share(Batch.of([Message(b"%d" % position[-1], position=position) for position in positions], source))


def unit_share(*units: tuple[Position, int]) -> Share:
    """Make a share of units with these first positions and numbers of messages; the payloads are the last components."""
    made = [line_unit(*range(first[-1], first[-1] + count), position=first) for first, count in units]
    return Share(line_batch(*made, source=PACKS))


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (lambda: packed((7, 5), (7, 6), (9, 0)), (9, 0)),
        (lambda: packed((3, 5, 0), (3, 5, 1), (3, 6, 0)), (3, 6, 0)),
        (lambda: unit_share(((7, 5), 2), ((35, 0), 1)), (35, 0)),
        (lambda: unit_share(((3, 5, 0), 1), ((3, 6, 0), 2)), (3, 6, 1)),
    ],
)
@pytest.mark.parametrize("stamp_origin", [True, False])
async def test_positions_of_several_components_are_stored_once(
    open_log: OpenLog, make: Callable[[], Share], last: Position, stamp_origin: bool
) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster, stamp_origin=stamp_origin)
    assert (await outbound.send(0, make())).positions == [(0,), (1,), (2,)]
    for again in (outbound, await sdk_outbound(await open_log(), stamp_origin=stamp_origin)):
        assert (await again.send(0, make())).positions == [()] * 3
        assert await again.resume(PACKS) == {0: last}
    assert len(await stored(cluster)) == 3
    with pytest.raises(ClusterError, match="must ascend"):
        await outbound.send(0, packed((*last[:-1], last[-1] + 2), (*last[:-1], last[-1] + 1)))
    later = await outbound.send(0, packed((*last[:-1], last[-1] + 1)))
    assert later.positions == [(3,)]
    mixed = await outbound.send(0, packed(last, (*last[:-1], last[-1] + 1), (*last[:-1], last[-1] + 2)))
    assert f"up to sequence {sequence_of((*last[:-1], last[-1] + 1))}" in reasons(mixed).pop()


LARGE = (1 << 28, 5, 0)
"""A position that does not fit into a sequence."""


async def test_a_position_that_does_not_fit_fails_the_send_without_origins(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    for share in (packed(LARGE), unit_share((LARGE, 2)), packed((1, 2, 3, 4)), packed((1 << 61,)), unit_share(((1, 1, 8191), 2))):
        with pytest.raises(ClusterError, match="sequence id") as raised:
            await outbound.send(0, share)
        assert raised.value.failure is Failure.FATAL
    assert await stored(cluster) == []


async def test_a_position_that_does_not_fit_is_found_by_its_origin(open_log: OpenLog) -> None:
    """Also if the log has a sequence of the sender, which is that of an earlier message."""
    cluster = await open_log()
    outbound = await sdk_outbound(cluster, stamp_origin=True, partitions=2)
    for partition in (0, 1):
        assert not (await outbound.send(partition, packed((9, 5, 0)))).failures
    assert not (await outbound.send(0, packed(LARGE))).failures
    assert await outbound.resume(PACKS) == {0: LARGE, 1: (9, 5, 0)}
    with pytest.raises(ClusterError, match="must ascend"):
        await outbound.send(0, packed(LARGE, LARGE))
    assert not (await outbound.send(0, packed((1 << 28, 6, 0)))).failures
    assert await outbound.resume(PACKS) == {0: (1 << 28, 6, 0), 1: (9, 5, 0)}


async def test_messages_without_positions_have_no_sequence(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    for _ in range(2):
        assert not (await outbound.send(0, Share(Batch.of([Message(b"1")])))).failures
    assert await stored(cluster) == [1, 1]


async def test_rows_that_are_stored_are_left_out_of_a_send_with_new_ones(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    await outbound.send(0, sent_by_sdk((0, 2), (2, 1)))
    receipt = await outbound.send(0, sent_by_sdk((0, 2), (2, 1), (3, 2)))
    assert not receipt.failures
    assert receipt.positions == [(), (), (), (3,), (4,)]
    assert await stored(cluster) == [0, 1, 2, 3, 4]


async def test_repeated_sends_of_one_transaction_are_stored_once(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbounds = [await sdk_outbound(cluster) for _ in range(2)]
    sends = [outbound.send(0, messages_of(first, first + 2)) for first in (0, 2, 4) for outbound in outbounds]
    receipts = await asyncio.gather(*sends)
    assert not any(receipt.failures for receipt in receipts)
    assert await stored(cluster) == list(range(6))


async def test_a_send_that_mixes_stored_and_new_messages_in_a_row_fails_with_those_behind_it(open_log: OpenLog) -> None:
    """If the later send was stored, nobody could tell any more that messages of the failed one are missing."""
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    other = await cluster.outbound(OutboundSpec("t", sender="other", stamp_origin=False, keep_units=True))
    await outbound.send(0, messages_of(0, 5))
    mixed, later, others = (
        outbound.send(0, messages_of(3, 8)),
        outbound.send(0, messages_of(8, 10)),
        other.send(0, messages_of(100, 101)),
    )
    assert {failure.failure_kind for failure in (await mixed).failures} == {Failure.RETRY}
    assert "up to sequence 4" in reasons(await mixed).pop()
    assert len((await mixed).failures) == 5
    assert len((await later).failures) == 2
    assert not (await others).failures
    assert await outbound.resume(SDK) == {0: (4,)}
    assert not (await outbound.send(0, messages_of(5, 10))).failures
    assert await stored(cluster) == [0, 1, 2, 3, 4, 100, 5, 6, 7, 8, 9]


async def test_what_is_sent_before_the_caller_knows_of_a_failure_does_not_overtake_it(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    await outbound.send(0, messages_of(0, 5))
    sent: list[asyncio.Future[Receipt]] = []
    loop, mixed = asyncio.get_running_loop(), outbound.send(0, messages_of(3, 8))
    resolve = outbound._appender._resolve_group

    def resolve_and_send(*arguments) -> None:  # type: ignore[no-untyped-def]
        """Send right behind the failure, before its callbacks run."""
        resolve(*arguments)
        sent.append(outbound.send(0, messages_of(8, 9)))

    outbound._appender._resolve_group = resolve_and_send  # type: ignore[method-assign]
    called = loop.create_future()
    mixed.add_done_callback(lambda _: called.set_result(len(sent)))
    assert await called == 1
    outbound._appender._resolve_group = resolve  # type: ignore[method-assign]
    assert reasons(await sent[0]) == {"an earlier send failed"}
    assert not (await outbound.send(0, messages_of(5, 9))).failures
    assert await stored(cluster) == list(range(9))


async def test_a_send_behind_a_withdrawn_one_of_its_sender_fails(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    first, second = outbound.send(0, messages_of(0, 2)), outbound.send(0, messages_of(2, 4))
    outbound.withdraw([first])
    assert reasons(await first) == {"the send was withdrawn"}
    assert reasons(await second) == {"an earlier send was withdrawn"}
    assert await outbound.resume(SDK) == {}
    assert not (await outbound.send(0, messages_of(0, 4))).failures
    assert await stored(cluster) == [0, 1, 2, 3]


async def test_a_send_right_after_a_withdrawal_does_not_overtake_the_withdrawn_one(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    first = outbound.send(0, messages_of(0, 2))
    outbound.withdraw([first])
    refused = await outbound.send(0, messages_of(2, 4))
    assert reasons(refused) == {"an earlier send failed"}
    assert refused.positions == [(), ()]
    assert await outbound.resume(SDK) == {}
    assert not (await outbound.send(0, messages_of(0, 4))).failures
    assert await stored(cluster) == [0, 1, 2, 3]


async def test_a_send_behind_a_cancelled_one_of_its_sender_fails(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound, other = await sdk_outbound(cluster), await cluster.outbound(OutboundSpec("t", sender="other", stamp_origin=False))
    first, second = outbound.send(0, messages_of(0, 2)), outbound.send(0, messages_of(2, 4))
    first.cancel()
    third, others = outbound.send(0, messages_of(4, 6)), other.send(0, messages_of(90, 91))
    for send in (second, third):
        assert len((await send).failures) == 2
    assert not (await others).failures
    assert await outbound.resume(SDK) == {}
    assert not (await outbound.send(0, messages_of(0, 6))).failures
    assert await stored(cluster) == [90, *range(6)]


@pytest.mark.parametrize("is_in_group", [True, False])
async def test_a_cancelled_send_that_waits_takes_those_behind_it_along_at_once(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_group: bool
) -> None:
    """The caller does not wait until the log can be written, and what it sends then is not failed for the cancelled send."""
    if not is_in_group:
        monkeypatch.setattr(append, "GROUP_BYTES", 1)
    cluster = await open_log(busy_timeout="50ms")
    outbound, other = await sdk_outbound(cluster), await cluster.outbound(OutboundSpec("t", sender="other", stamp_origin=False))
    lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    others = other.send(0, messages_of(90, 91))
    first, second = outbound.send(0, messages_of(0, 2)), outbound.send(0, messages_of(2, 4))
    await asyncio.sleep(0.3)
    first.cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert len((await second).failures) == 2
        assert await outbound.resume(SDK) == {}
    again = outbound.send(0, messages_of(0, 4))
    lock.execute("ROLLBACK")
    lock.close()
    assert not (await again).failures
    assert not (await others).failures
    assert await stored(cluster) == [90, 0, 1, 2, 3]


async def test_a_fatal_failure_keeps_what_is_sent_before_its_callbacks_from_being_stored(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    appender, sent = outbound._appender, list[asyncio.Future[Receipt]]()
    fail_all, run = appender._fail_all, appender._store.append

    def fail_all_and_send(*arguments) -> None:  # type: ignore[no-untyped-def]
        """Send right behind the failure, before its callbacks run."""
        fail_all(*arguments)
        sent.append(outbound.send(0, messages_of(2, 4)))

    def fail_once(_job: object, size: int):  # type: ignore[no-untyped-def]
        appender._store.append = run  # type: ignore[method-assign]
        return run(lambda *_: raise_fatal(), size)

    appender._fail_all, appender._store.append = fail_all_and_send, fail_once  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="damaged"):
        await outbound.send(0, messages_of(0, 2))
    assert reasons(await sent[0]) == {"an earlier send failed"}
    assert await outbound.resume(SDK) == {}
    appender._fail_all = fail_all  # type: ignore[method-assign]
    assert not (await outbound.send(0, messages_of(0, 4))).failures
    assert await stored(cluster) == [0, 1, 2, 3]


def raise_fatal() -> NoReturn:
    raise ClusterError("damaged", Failure.FATAL)


@pytest.mark.parametrize(
    "share",
    [
        Share(Batch.of([*numbered(3, 4), *numbered(1, 2)], SDK)),
        Share(Batch.of([*numbered(3, 4), *numbered(3, 4)], SDK)),
        Share(Batch.of([Message(b"1", position=(1,)), Message(b"2", position=(1, 2))], SDK)),
        sent_by_sdk((5, 3), (6, 1)),
    ],
)
async def test_positions_that_do_not_ascend_are_refused(open_log: OpenLog, share: Share) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    with pytest.raises(ClusterError, match="must ascend") as raised:
        await outbound.send(0, share)
    assert raised.value.failure is Failure.FATAL
    assert await stored(cluster) == []


async def test_refused_messages_leave_no_hole_in_what_is_known(open_log: OpenLog) -> None:
    cluster = await open_log(max_message_bytes=100)
    outbound = await sdk_outbound(cluster)
    before, _, after = numbered(0, 3)
    receipt = await outbound.send(0, Share(Batch.of([before, Message(bytes(200), position=(1,)), after], SDK)))
    assert [failure.index for failure in receipt.failures] == [1]
    assert receipt.positions == [(0,), (), (1,)]
    assert await outbound.resume(SDK) == {0: (2,)}


async def test_senders_and_partitions_are_apart(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster, partitions=3)
    other = await cluster.outbound(OutboundSpec("t", sender="other", stamp_origin=False, keep_units=True))
    await outbound.send(0, messages_of(0, 3))
    await outbound.send(2, messages_of(3, 5))
    await other.send(0, messages_of(10, 11))
    assert await outbound.resume(SDK) == {0: (2,), 2: (4,)}
    assert await outbound.resume(SDK, partitions=[1, 2]) == {2: (4,)}
    assert await other.resume(SDK) == {0: (10,)}


async def test_a_sender_that_stamps_is_found_by_origins_where_there_is_no_sequence(open_log: OpenLog, tmp_path: Path) -> None:
    """Messages that were stored before there were sequences."""
    cluster = await open_log()
    outbound = await sdk_outbound(cluster, stamp_origin=True, partitions=2)
    await outbound.send(0, messages_of(0, 3))
    await outbound.send(1, messages_of(3, 5))
    change(tmp_path / "log.db", "UPDATE batch SET sender = NULL, sequence = NULL, crc = crc WHERE partition % 2 = 0")
    assert await outbound.resume(SDK, {0: (0,)}) == {1: (4,)}, "the row is damaged by the change, and counts as lost"


async def test_a_sender_without_origins_does_not_search_the_messages(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    await (await cluster_outbound(cluster)).send(0, messages_of(0, 5))
    monkeypatch.setattr(cluster, "reader", None)
    assert await (await sdk_outbound(cluster)).resume(SDK) == {}


async def cluster_outbound(cluster: LogCluster) -> LogOutbound:
    await cluster.create("t", 1)
    outbound = await cluster.outbound(OutboundSpec("t"))
    assert isinstance(outbound, LogOutbound)
    return outbound


async def test_what_retention_has_dropped_is_forgotten(open_log: OpenLog) -> None:
    """The last message of a partition always stays, so a sender is forgotten only behind messages of others."""
    cluster = await open_log(retention_bytes=4000)
    outbound, other = await sdk_outbound(cluster), await cluster_outbound(cluster)
    await outbound.send(0, messages_of(0, 3))
    assert await outbound.resume(SDK) == {0: (2,)}
    for _ in range(5):
        await other.send(0, Share(Batch.of([Message(bytes(2000))])))
    assert await outbound.resume(SDK) == {}
    receipt = await outbound.send(0, messages_of(1, 3))
    assert len(receipt.highest_position) == 1
    assert await outbound.resume(SDK) == {0: (2,)}


async def test_a_restored_log_knows_what_it_has(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    await outbound.send(0, messages_of(0, 3))
    backup(tmp_path / "log.db", tmp_path / "copy.db", no_report, is_forced=False)
    await outbound.send(0, messages_of(3, 6))
    await cluster.close()
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"log.db{suffix}").unlink(missing_ok=True)
    shutil.move(tmp_path / "copy.db", tmp_path / "log.db")
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    assert await outbound.resume(SDK) == {0: (2,)}
    receipt = await outbound.send(0, messages_of(3, 6))
    assert receipt.highest_position > (6,)
    assert await outbound.resume(SDK) == {0: (5,)}


async def test_damaged_rows_do_not_count(open_log: OpenLog, tmp_path: Path) -> None:
    """Their messages are gaps, so the sender sends them again; a damaged index must not hide that they are missing."""
    cluster = await open_log()
    outbound = await sdk_outbound(cluster)
    for first in (0, 2, 4):
        await outbound.send(0, messages_of(first, first + 2))
    change(tmp_path / "log.db", "UPDATE batch SET sequence = 9000 WHERE base = 4")
    assert await outbound.resume(SDK) == {0: (3,)}
    assert not (await outbound.send(0, messages_of(4, 6))).failures
    assert await outbound.resume(SDK) == {0: (5,)}


def test_the_highest_sequence_is_found_by_an_index(tmp_path: Path) -> None:
    from mqbridge.log.store.schema import TABLES

    connection = sqlite3.connect(":memory:")
    for statement in TABLES:
        connection.execute(statement)
    plan = " ".join(row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {ROWS_OF_SENDER}", (1, "a")))
    assert "batch_sender (partition=? AND sender=? AND sequence>?)" in plan
    assert "TEMP B-TREE" not in plan


async def test_the_wal_of_a_sender_is_moved_into_the_file(open_log: OpenLog, tmp_path: Path) -> None:
    """A query that is still open when a transaction commits would keep its snapshot, and with it the whole WAL."""
    cluster = await open_log(synchronous="normal")
    outbound, largest = await sdk_outbound(cluster), 0
    for position in range(40):
        share = Share(Batch.of([Message(bytes(4 << 20), position=(position,))], SDK))
        assert not (await outbound.send(0, share)).failures
        largest = max(largest, (tmp_path / "log.db-wal").stat().st_size)
    assert largest <= WAL_BYTES + (12 << 20)


async def test_a_wal_that_is_too_large_is_moved_into_the_file_after_each_job(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever queries the job has left open."""
    cluster = await open_log(synchronous="normal")
    outbound = await sdk_outbound(cluster)
    for position in range(3):
        assert not (await outbound.send(0, messages_of(position, position + 1))).failures
    monkeypatch.setattr(database, "WAL_BYTES", 0)
    cluster.store._guarded_until = 0.0

    def leave_query_open(connection: Connection) -> int:
        connection.execute("INSERT INTO lease VALUES ('g', 1, 'a')")
        return int(connection.execute("SELECT rowid FROM batch").fetchone()[0])

    assert await cluster.store.write(leave_query_open) == 1
    assert (tmp_path / "log.db-wal").stat().st_size == 0


@pytest.mark.parametrize("sender", ["", "\ud800", "x" * (64 << 10) + "y"])
async def test_the_name_of_a_sender_can_be_stored(open_log: OpenLog, sender: str) -> None:
    cluster = await open_log()
    await cluster.create("t", 1)
    for refused in (cluster.outbound(OutboundSpec("t", sender=sender)), cluster.check_outbound(OutboundSpec("t", sender=sender))):
        with pytest.raises(ConfigError, match="name of a sender"):
            await refused
