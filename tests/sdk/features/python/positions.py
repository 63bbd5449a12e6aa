"""Where reading begins: readers, seeks, subscriptions and their positions, patterns, partitions and lost connections."""

from __future__ import annotations

import re
import time
from collections import defaultdict

import pulsar

from tests.sdk.features.python.run import Feature, Outcome, Run, are_all, ids, receive, rest, text, texts

PARTITIONS = 3
BURST = 5
CUTS = 3
APART_S = 0.05
"""Pause between messages that get different publish times (which count milliseconds)."""


def _read(reader: pulsar.Reader) -> list[str]:
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(30_000).data().decode())
    reader.close()
    return values


def _reader(run: Run, start: pulsar.MessageId, suffix: str = "", **settings: object) -> pulsar.Reader:
    return run.client.create_reader(run.topic(suffix), start, **settings)


def reader(run: Run) -> Outcome:
    sent = run.send(range(6))
    latest = _reader(run, pulsar.MessageId.latest)
    had = latest.has_message_available()
    run.send(["later"])
    return {
        "earliest": _read(_reader(run, pulsar.MessageId.earliest)),
        "latest_had": had,
        "latest": [latest.read_next(30_000).data().decode()],
        "after_id": _read(_reader(run, sent[3])),
        "from_id": _read(_reader(run, sent[3], start_message_id_inclusive=True)),
    }


def reader_in_batch(run: Run) -> Outcome:
    sent = run.send_batch(range(6))
    return {"after_id": _read(_reader(run, sent[3])), "from_id": _read(_reader(run, sent[3], start_message_id_inclusive=True))}


def reader_seek(run: Run) -> Outcome:
    sent = run.send(range(6))
    opened = _reader(run, pulsar.MessageId.earliest, start_message_id_inclusive=True)
    first = [opened.read_next(30_000).data().decode() for _ in sent]
    opened.seek(sent[2])
    return {"first": first, "after_seek": _read(opened)}


def seek_by_id(run: Run) -> Outcome:
    consumer = run.consumer(start_message_id_inclusive=True)
    sent = run.send(range(6))
    receive(consumer, 6, acknowledge=True)
    found = {}
    for name, position in (("id", sent[2]), ("earliest", pulsar.MessageId.earliest), ("latest", pulsar.MessageId.latest)):
        consumer.seek(position)
        found[name] = texts(rest(consumer))
    return found


def seek_in_batch(run: Run) -> Outcome:
    consumer = run.consumer(start_message_id_inclusive=True)
    sent = run.send_batch(range(6))
    receive(consumer, 6, acknowledge=True)
    consumer.seek(sent[2])
    return {"received": texts(rest(consumer))}


def seek_by_time(run: Run) -> Outcome:
    consumer = run.consumer()
    for number in range(6):
        run.send([number])
        time.sleep(APART_S)
    times = [message.publish_timestamp() for message in receive(consumer, 6, acknowledge=True)]
    consumer.seek(times[3])
    return {"received": texts(rest(consumer))}


def last_message_id(run: Run) -> Outcome:
    consumer = run.consumer()
    single = run.send(range(3))[-1] == consumer.get_last_message_id()
    return {"single": single, "batch": run.send_batch(range(3))[-1] == consumer.get_last_message_id()}


def initial_position(run: Run) -> Outcome:
    run.send(range(3))
    earliest = run.consumer(name="earliest", initial_position=pulsar.InitialPosition.Earliest)
    latest = run.consumer(name="latest", initial_position=pulsar.InitialPosition.Latest)
    run.send(range(3, 5))
    return {"earliest": texts(rest(earliest)), "latest": texts(rest(latest))}


def durable(run: Run) -> Outcome:
    consumer = run.consumer()
    run.send(range(6))
    messages = receive(consumer, 6)
    for message in messages[:3]:
        consumer.acknowledge(message)
    run.client.close()
    run.client = run.new_client()
    again = rest(run.consumer(initial_position=pulsar.InitialPosition.Latest))
    return {"again": texts(again), "same_ids": ids(again) == ids(messages[3:])}


def unsubscribe(run: Run) -> Outcome:
    consumer = run.consumer()
    run.send(range(3))
    receive(consumer, 3, acknowledge=True)
    consumer.unsubscribe()
    return {"again": texts(rest(run.consumer()))}


def pattern(run: Run) -> Outcome:
    """The client's option for the time between two looks for new topics is without effect: it takes a minute."""
    for suffix in ("-a", "-b", "other"):
        run.send([suffix], suffix)
    consumer = run.client.subscribe(re.compile(run.topic("-.*")), "s", initial_position=pulsar.InitialPosition.Earliest)
    return {"received": sorted(texts(rest(consumer)))}


def partitioned(run: Run) -> Outcome:
    consumer, producer = run.consumer(), run.producer()
    for number in range(12):  # round robin
        producer.send(str(number).encode())
    for number in range(12, 24):
        producer.send(str(number).encode(), partition_key=f"k{number % 4}")
    by_partition: dict[int, list[int]] = defaultdict(list)
    by_key: dict[str, set[int]] = defaultdict(set)
    for message in receive(consumer, 24, acknowledge=True):
        by_partition[message.message_id().partition()].append(int(text(message)))
        if message.partition_key():
            by_key[message.partition_key()].add(message.message_id().partition())
    consumer.close()
    return {
        "partitions": len(run.client.get_topic_partitions(run.topic())),
        "all_once": are_all(by_partition.values(), 24),
        "spread": len(by_partition) == PARTITIONS,
        "in_order": all(numbers == sorted(numbers) for numbers in by_partition.values()),
        "one_partition_per_key": all(len(partitions) == 1 for partitions in by_key.values()),
        "left": texts(rest(run.consumer())),
    }


def broken_connection(run: Run) -> Outcome:
    consumer, producer = run.consumer(), run.producer()
    for first in range(0, BURST * CUTS, BURST):
        for number in range(first, first + BURST):
            producer.send_async(str(number).encode(), lambda *_: None)
        run.ask("cut")
        producer.flush()
    seen: dict[str, None] = {}
    while len(seen) < BURST * CUTS:
        seen |= dict.fromkeys(texts(receive(consumer, 1, acknowledge=True)))
    rest(consumer)
    run.ask("cut")
    producer.send(b"after")
    after = texts(rest(consumer))
    consumer.close()
    return {"received": list(seen), "after": sorted({*after} - {*seen}), "left": texts(rest(run.consumer()))}


FEATURES: dict[str, Feature] = {
    feature.__name__: feature
    for feature in (
        reader, reader_in_batch, reader_seek, seek_by_id, seek_in_batch, seek_by_time, last_message_id, initial_position,
        durable, unsubscribe, pattern, partitioned, broken_connection,
    )
}  # fmt: skip
