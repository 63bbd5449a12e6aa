"""Unsettled packs at an orderly shutdown of their Broker: the group returns to them, whichever member released them."""

import asyncio
from collections.abc import Callable

import pytest

from mqbridge.tubemq.client.consumer import held_partitions
from mqbridge.tubemq.client.consumer.held_partitions import MemoryPositions
from mqbridge.tubemq.wire import rpc
from tests.kit.conversation import until
from tests.tubemq.client.members import (
    KEY,
    MESSAGES,
    REF,
    come_back,
    filled_model,
    first_offset,
    member,
    read_on,
    send,
    shorten_all_pauses,
    shut_down,
)
from tests.tubemq.client.model import STEP, Model


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_all_pauses(monkeypatch)


@pytest.fixture
def model() -> Model:
    return filled_model()


async def test_a_release_after_a_restart_sets_the_group_back(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await partition.release()
        await until(lambda: not one.held._restorations)
    assert await first_offset(model) == 0


async def test_a_restart_is_noticed_while_the_pack_is_out(model: Model) -> None:
    """A heartbeat reveals the restart. The pack is then registered again, so it is not lost however the member ends."""
    async with member(model) as one:
        partition = await one.take_pack()
        shut_down(model)
        come_back(model)
        await until(lambda: model.broker.confirmed[KEY] == 0 and partition.state.is_detached)
        assert partition.pack is not None, "the reader keeps the pack"
    assert await first_offset(model) == 0


@pytest.mark.parametrize("settle", ["confirm", "reject"])
async def test_a_pack_that_is_settled_after_a_restart_is_redelivered_only_if_it_was_rejected(model: Model, settle: str) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        getattr(partition, settle)()
        assert (await partition.fetch()).offset == (5 * STEP if settle == "confirm" else 0)


async def test_a_confirmed_pack_is_not_given_to_the_next_member(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        partition.confirm()
        await one.close()
    assert await first_offset(model) == 5 * STEP


async def test_closing_waits_for_a_broker_that_is_down(model: Model) -> None:
    async with member(model) as one:
        await one.take_pack()
        shut_down(model)
        closing = asyncio.ensure_future(one.close())
        await until(lambda: bool(one.held._restorations))
        come_back(model)
        await closing
    assert await first_offset(model) == 0


async def test_a_broker_that_stays_down_is_remembered(model: Model) -> None:
    positions = MemoryPositions()
    async with member(model, positions) as one:
        await one.take_pack()
        shut_down(model)
        await one.close(timeout=held_partitions.LEAVE_S)
        come_back(model)
    assert model.broker.confirmed[KEY] == 5 * STEP
    assert await first_offset(model, positions) == 0


async def test_a_partition_that_is_acquired_again_goes_back(model: Model) -> None:
    """The Master takes the partition away while its Broker is down, and gives it back when it runs again."""
    async with member(model) as one:
        partition = await one.take_pack()
        shut_down(model)
        await partition.release()
        come_back(model)
        assert (await (await one.take()).fetch()).offset == 0


@pytest.mark.parametrize(("others_read", "expected"), [(0, 0), (5, 10)], ids=["nobody read on", "another member read on"])
async def test_the_group_of_a_killed_member_returns_to_its_pack_unless_others_continued(
    model: Model, others_read: int, expected: int
) -> None:
    """Another member set a position that one pack cannot explain: it got the pack when the lease expired."""
    positions = MemoryPositions()
    async with member(model, positions) as one:
        await one.take_pack()
    model.broker.restart_cleanly()
    send(model, 10)
    model.broker.confirmed[KEY] += others_read * STEP
    assert await first_offset(model, positions) == expected * STEP


async def test_an_orderly_release_leaves_nothing_to_set_back(model: Model) -> None:
    positions = MemoryPositions()
    async with member(model, positions) as one:
        partition = await one.take_pack()
        partition.confirm()
        await one.close()
    assert positions.unsettled(REF) is None
    assert await first_offset(model, positions) == 5 * STEP


async def test_an_idle_partition_queries_its_position(model: Model) -> None:
    """The Broker moves it past the entries of other partitions; the position is where a gap would begin."""
    positions = MemoryPositions()
    async with member(model, positions) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        model.broker.store_foreign("demo", 0, 20)

        def position() -> int:
            unsettled = positions.unsettled(REF)
            return 0 if unsettled is None else unsettled.offset

        await until(lambda: position() == (MESSAGES + 20) * STEP)
        assert partition.caught_up
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_reader_is_not_caught_up_while_its_broker_is_away(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        await until(lambda: partition.caught_up)
        shut_down(model)
        await until(lambda: not partition.caught_up)
        come_back(model)
        await until(lambda: partition.caught_up)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_filtered_get_without_data_is_not_the_end(model: Model) -> None:
    """Brokers give filtered readers only what is on disk: until then, the position stays before the end of the store."""
    end: Callable[[str, int], int] = model.broker.end
    model.broker.end = lambda topic, partition: end(topic, partition) + STEP  # type: ignore[method-assign]
    async with member(model) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        await until(lambda: partition.found_no_data and model.faults.counts[rpc.COMMIT] > 2)
        assert not partition.caught_up
        model.broker.end = end  # type: ignore[method-assign]
        send(model, 1)
        await until(lambda: partition.caught_up)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
