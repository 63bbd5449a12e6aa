"""Producers: their states, names that are unique, access modes, sends that are answered in order, and what a client may send."""

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from mqbridge.errors import ClusterError
from mqbridge.pulsar.server import connection as connections
from mqbridge.pulsar.server.producer import ServedProducerState
from mqbridge.pulsar.wire import client_commands, codes, ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, ProducerAccessMode
from tests.patience import PATIENCE_S
from tests.pulsar.server.serving import TOPIC, RawClient, Serving, batch_frame, entry_frame, serving, until

NAMED = {"producer_name": "n", "user_provided_producer_name": True}


async def test_sends_are_answered_in_order_with_ascending_ids():
    async with serving() as served:
        client = await served.connect()
        opened = await client.produce()
        assert (opened.last_sequence_id, opened.schema_version, opened.producer_ready) == (-1, b"", True)
        assert opened.producer_name.startswith("app-")
        assert not opened.HasField("topic_epoch")
        client.send(*(batch_frame([b"x"] * 3, sequence) for sequence in range(0, 30, 3)))
        receipts = [await client.of(BaseCommand.SEND_RECEIPT) for _ in range(10)]
        assert [each.sequence_id for each in receipts] == list(range(0, 30, 3))
        found = [ids.entry_id(each.message_id) for each in receipts]
        assert found == [(1, number) for number in range(0, 30, 3)]


async def test_the_same_id_again_is_answered_and_a_higher_epoch_replaces_it():
    async with serving() as served:
        client = await served.connect()
        first = await client.produce()
        assert (await client.produce()).producer_name == first.producer_name
        assert (await client.produce(producer_name=first.producer_name, epoch=1)).producer_name == first.producer_name
        assert await client.store(b"x")
        assert len(served.broker._owned) == 1


async def test_a_name_is_refused_while_its_client_lives():
    async with serving() as served:
        client, other = await served.connect(), await served.connect()
        await client.produce(**NAMED)
        assert (await client.produce(2, **NAMED)).error == codes.PRODUCER_BUSY
        assert (await other.produce(**NAMED)).error == codes.PRODUCER_BUSY
        await client.close()
        await until(lambda: not served.broker._owned)
        assert (await other.produce(**NAMED)).producer_name == "n"


async def test_a_silent_client_loses_its_name_and_others_are_not_delayed(monkeypatch):
    monkeypatch.setattr(connections, "PROBE_S", 0.5)
    async with serving() as served:
        silent, client, third, other = [await served.connect() for _ in range(4)]
        await silent.produce(**NAMED)
        silent.silent = True
        client.send(client.producer_frame(1, **NAMED))
        third.send(third.producer_frame(1, **NAMED))
        for number in range(5):  # while the silent one is asked
            assert (await other.produce(10 + number)).producer_ready
        assert not silent.ended.is_set()
        answers = [await client.answer(1), await third.answer(1)]
        assert sorted(getattr(each, "error", 0) for each in answers) == [0, codes.PRODUCER_BUSY], "both got one name"
        await silent.wait_ended()


async def test_a_client_that_goes_while_it_waits_for_a_name_leaves_nothing(monkeypatch):
    monkeypatch.setattr(connections, "PROBE_S", 0.3)
    async with serving() as served:
        silent, client, other = [await served.connect() for _ in range(3)]
        await other.produce(9)
        await silent.produce(**NAMED)
        silent.silent = True
        for mode in (ProducerAccessMode.Shared, ProducerAccessMode.WaitForExclusive):
            client.send(client.producer_frame(1, **NAMED, producer_access_mode=mode))
            await client.ping()
            await client.close()
            client = await served.connect()
        await silent.wait_ended()
        await until(lambda: len(served.broker._owned) == 1)
        (producers,) = served.broker.producers.values()
        await until(lambda: list(producers.by_name.values()) == list(served.broker._owned))
        assert (producers.users, dict(producers._waiting)) == (1, {})
        assert (await other.produce(1, **NAMED)).producer_name == "n"


async def test_exclusive_producers():
    async with serving() as served:
        first, second = await served.connect(), await served.connect()
        assert (await first.produce(producer_access_mode=ProducerAccessMode.Exclusive)).topic_epoch == 0
        assert (await second.produce()).error == codes.PRODUCER_BUSY
        assert (await second.produce(2, producer_access_mode=ProducerAccessMode.Exclusive)).error == codes.PRODUCER_FENCED
        waiting = await second.produce(3, producer_access_mode=ProducerAccessMode.WaitForExclusive)
        assert not waiting.producer_ready
        assert not waiting.HasField("topic_epoch")
        first.send(client_commands.close_producer(90, 1))
        await first.answer(90)
        promoted = await second.of(BaseCommand.PRODUCER_SUCCESS)
        assert (promoted.producer_ready, promoted.topic_epoch) == (True, 1)
        fencing = await first.produce(4, producer_access_mode=ProducerAccessMode.ExclusiveWithFencing)
        assert fencing.topic_epoch == 2
        assert (await second.of(BaseCommand.CLOSE_PRODUCER)).producer_id == 3
        again = await second.produce(3, producer_access_mode=ProducerAccessMode.Exclusive, topic_epoch=1)
        assert again.error == codes.PRODUCER_FENCED


async def test_a_fenced_producer_does_not_come_back_when_the_one_that_fenced_it_has_gone(tmp_path):
    """Topic epochs outlive the producers, and with the state file the process."""
    fencing = {"producer_access_mode": ProducerAccessMode.ExclusiveWithFencing}
    for restarts in (False, True):
        async with AsyncExitStack() as stack:
            path = tmp_path / str(restarts)
            path.mkdir()
            served = await stack.enter_async_context(serving(folder=path))
            old, new = await served.connect(), await served.connect()
            assert (await old.produce(**fencing)).topic_epoch == 0
            assert (await new.produce(**fencing)).topic_epoch == 1
            assert (await old.of(BaseCommand.CLOSE_PRODUCER)).producer_id == 1
            await new.close()
            await until(lambda: not served.broker.producers)  # noqa: B023 - waited for here
            if restarts:
                await stack.aclose()
                served = await stack.enter_async_context(serving(folder=path))
                old = await served.connect()
            again = await old.produce(2, producer_access_mode=ProducerAccessMode.Exclusive, topic_epoch=0)
            assert again.error == codes.PRODUCER_FENCED
            assert (await old.produce(3, producer_access_mode=ProducerAccessMode.Exclusive)).topic_epoch == 2


async def test_an_epoch_is_kept_even_if_its_producer_has_gone_before_it_was_told(monkeypatch):
    async with serving() as served:
        old, new = await served.connect(), await served.connect()
        assert (await old.produce(producer_access_mode=ProducerAccessMode.Exclusive)).topic_epoch == 0
        written, gate = asyncio.Event(), asyncio.Event()

        async def write(*_: object) -> None:
            written.set()
            await gate.wait()

        with monkeypatch.context() as patch:
            patch.setattr(served.broker.services.notes, "write", write)
            new.send(new.producer_frame(1, producer_access_mode=ProducerAccessMode.ExclusiveWithFencing))
            await asyncio.wait_for(written.wait(), PATIENCE_S)
            await new.close()
            gate.set()
            await until(lambda: not served.broker.producers)
        again = await old.produce(2, producer_access_mode=ProducerAccessMode.Exclusive, topic_epoch=0)
        assert again.error == codes.PRODUCER_FENCED


async def test_an_epoch_that_nobody_has_given_is_refused():
    async with serving() as served:
        client = await served.connect()
        refused = await client.produce(producer_access_mode=ProducerAccessMode.Exclusive, topic_epoch=(1 << 64) - 1)
        assert refused.error == codes.NOT_ALLOWED
        assert (await client.produce(2, producer_access_mode=ProducerAccessMode.Exclusive)).topic_epoch == 0


async def test_an_epoch_that_cannot_be_written_is_not_given(monkeypatch):
    async with serving() as served:
        client = await served.connect()

        async def write(*_: object) -> None:
            raise ClusterError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(served.broker.services.notes, "write", write)
            assert "the disk is full" in (await client.produce(producer_access_mode=ProducerAccessMode.Exclusive)).message
            assert (await client.produce(2)).producer_ready, "others need none"
            client.send(client_commands.close_producer(90, 2))
            await client.answer(90)
        assert (await client.produce(3, producer_access_mode=ProducerAccessMode.Exclusive)).topic_epoch == 1


async def test_waiting_producers_that_have_gone_are_passed_over():
    async with serving() as served:
        first, second, third = [await served.connect() for _ in range(3)]
        await first.produce(producer_access_mode=ProducerAccessMode.Exclusive)
        for client in (second, third):
            assert not (await client.produce(producer_access_mode=ProducerAccessMode.WaitForExclusive)).producer_ready
        await second.close()
        await until(lambda: len(served.broker._owned) == 2)
        await first.close()
        assert (await third.of(BaseCommand.PRODUCER_SUCCESS)).producer_ready
        await third.close()
        await until(lambda: not served.broker.producers)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"publish_time": (1 << 64) - 1}, None),
        ({"sequence_id": (1 << 64) - 1}, None),
        ({"num_messages_in_batch": -5}, None),
        ({"num_messages_in_batch": 0}, None),
        ({"num_messages_in_batch": (1 << 31) - 1}, None),
        ({"num_messages_in_batch": 100_000}, None),
        ({"deliver_at_time": -(1 << 63)}, None),
        ({"deliver_at_time": (1 << 63) - 1}, None),
        ({"event_time": (1 << 64) - 1}, None),
        ({"uuid": "u", "chunk_id": 7, "num_chunks_from_msg": 3, "total_chunk_msg_size": -1}, None),
        ({"chunk_id": -1, "num_chunks_from_msg": -3}, None),
        ({"partition_key": "?", "partition_key_b64_encoded": True}, None),
        ({"compression": pb.ZSTD, "uncompressed_size": (1 << 32) - 1}, None),
        ({"marker_type": 1}, codes.NOT_ALLOWED),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("deduplicate", [False, True])
async def test_strange_metadata_is_stored_or_refused_and_others_go_on(metadata, code, deduplicate, caplog):
    async with serving(deduplicate=deduplicate) as served:
        client, other = await served.connect(), await served.connect()
        await client.produce(**NAMED)
        await other.produce()
        frame = entry_frame(b"strange", **metadata)
        client.send(frame, entry_frame(b"after", 1))
        if code is None:
            await client.of(BaseCommand.SEND_RECEIPT)
            assert await other.store(b"x")
        else:
            assert (await client.of(BaseCommand.SEND_ERROR)).error == code
        await other.store(b"y")
        for number, kind in enumerate(
            (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared, pb.CommandSubscribe.Exclusive)
        ):
            await other.subscribe(number, subscription=f"s{number}", subType=kind, permits=1 << 20)
            payload = b""
            while payload != b"y":
                entry, payload = await other.message()
                other.ack(entry, consumer=number)
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}], caplog.text


@pytest.mark.parametrize("sequence", [(1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("highest", [0, 5, (1 << 63) - 1, (1 << 64) - 1])
async def test_strange_sequence_ids_of_a_deduplicated_producer(sequence, highest, caplog):
    async with serving(deduplicate=True) as served:
        client, other = await served.connect(), await served.connect()
        await client.produce(**NAMED)
        await other.produce()
        entry = entry_frame(b"x", 0)
        at = entry.index(b"\x0e\x01")
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, sequence, 1
        command.send.highest_sequence_id = highest
        data = command.SerializeToString()
        client.send((len(data) + 4 + len(entry) - at).to_bytes(4) + len(data).to_bytes(4) + data + entry[at:])
        await client.next()
        assert await other.store(b"y")
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}], caplog.text


async def test_an_entry_that_is_damaged_is_refused():
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        frame = bytearray(entry_frame(b"hello"))
        frame[-1] ^= 1
        client.send(bytes(frame))
        assert (await client.of(BaseCommand.SEND_ERROR)).error == codes.CHECKSUM
        whole = entry_frame(b"")
        at = whole.index(b"\x0e\x01")
        for size in range(at, len(whole)):  # the entry ends early
            data = whole[:size]
            client.send((size - 4).to_bytes(4) + data[4:])
            assert (await client.of(BaseCommand.SEND_ERROR)).error == codes.CHECKSUM
        assert await client.store(b"x")


async def test_what_comes_for_a_producer_that_was_closed_by_us_is_ignored():
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        (producer,) = served.broker._owned
        producer.drop()
        assert (await client.of(BaseCommand.CLOSE_PRODUCER)).producer_id == 1
        assert producer.state is ServedProducerState.CLOSED
        client.send_entry(b"x")
        await client.ping()
        await client.produce(epoch=1)
        assert await client.store(b"x")


async def closed_by(served: Serving, client: RawClient, how: str) -> None:
    if how == "client":
        client.send(client_commands.close_producer(70, 1))
        await client.answer(70)
    elif how == "connection":
        await client.close()
    else:
        for producer in list(served.broker._owned):
            producer.drop()


@pytest.mark.parametrize("how", ["client", "connection", "us"])
async def test_every_end_of_a_producer_leaves_nothing(how):
    async with serving() as served:
        client = await served.connect()
        await client.produce(**NAMED)
        (producer,) = served.broker._owned
        assert producer.state is ServedProducerState.OPEN
        client.send(*(entry_frame(b"x", sequence) for sequence in range(100)))
        await closed_by(served, client, how)
        await until(lambda: not served.broker.producers and not served.broker._owned)
        assert producer.state is ServedProducerState.CLOSED
        await until(lambda: served.listener.in_flight.used == 0 and producer.pending == 0)


async def test_a_flood_of_sends_stops_the_reading_and_goes_on():
    async with serving(in_flight_bytes=1 << 20) as served:
        client = await served.connect()
        await client.produce()
        (session,) = served.listener.server._connections  # type: ignore[attr-defined]
        client.send(*(entry_frame(bytes(1000), sequence) for sequence in range(5000)))
        paused = False
        received = 0
        while received < 5000:
            await client.of(BaseCommand.SEND_RECEIPT)
            received += 1
            paused |= session._endpoint.is_reading_paused
        assert paused
        assert (session.pending_sends, served.listener.in_flight.used) == (0, 0)


async def test_names_of_producers_are_unique_with_many_connections():
    async with serving() as served:
        clients = [await served.connect() for _ in range(8)]
        for number, client in enumerate(clients):
            client.send(*(client.producer_frame(request, request) for request in range(10)))
            assert number >= 0
        names = [(await client.answer(request)).producer_name for client, request in itertools.product(clients, range(10))]
        assert len(set(names)) == 80
        await asyncio.gather(*(client.close() for client in clients))
        await until(lambda: not served.broker.producers)


async def test_a_long_name_is_refused():
    async with serving() as served:
        client = await served.connect()
        assert (await client.produce(producer_name="n" * 100_000)).error == codes.NOT_ALLOWED
        assert (await client.produce(2, initial_subscription_name="s" * 100_000)).error == codes.NOT_ALLOWED
        assert (await client.produce(3, topic=TOPIC, initial_subscription_name="first")).producer_ready
