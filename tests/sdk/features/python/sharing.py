"""Subscription types, acknowledgements, redelivery and delay."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import pulsar
from pulsar import ConsumerType

from tests.sdk.features.python.run import Feature, Outcome, Run, are_all, gather, ids, receive, rest, text, texts

NACK_MS = 100
DELAY = timedelta(seconds=3)
LONG_DELAY = timedelta(hours=1)
KEYS = 20
ROUNDS = 5


def exclusive(run: Run) -> Outcome:
    first, second = run.consumer(), "accepted"
    try:
        run.consumer()
    except pulsar.ConsumerBusy:
        second = "busy"
    run.send(range(3))
    received = texts(receive(first, 3))
    first.close()
    return {"second": second, "received": received, "after_close": texts(receive(run.consumer(), 3))}


def failover(run: Run) -> Outcome:
    members = [run.consumer(consumer_type=ConsumerType.Failover, consumer_name=name) for name in "ab"]
    run.send(range(5))
    counts: list[list[pulsar.Message]] = [[], []]
    while sum(map(len, counts)) < 5:
        for member, mine in zip(members, counts, strict=True):
            try:
                mine.append(member.receive(200))
            except pulsar.Timeout:
                continue
    active = 0 if counts[0] else 1
    for message in counts[active][:3]:
        members[active].acknowledge(message)
    members[active].close()
    run.send(range(5, 8))
    return {
        "active": texts(counts[active]),
        "standby": texts(counts[1 - active]),
        "taken_over": texts(receive(members[1 - active], 5)),
    }


def shared(run: Run) -> Outcome:
    members = [run.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=1) for _ in "ab"]
    run.send(range(20))
    received = gather(members, 20)
    return {"all_once": are_all(received, 20), "both": all(received)}


def shared_zero_queue(run: Run) -> Outcome:
    """With a queue of 0 the client asks for one message when the application does."""
    members = [run.consumer(consumer_type=ConsumerType.Shared, receiver_queue_size=0) for _ in "ab"]
    run.send(range(20))
    received: list[list[str]] = [[], []]
    for turn in range(20):
        message = members[turn % 2].receive()
        received[turn % 2].append(text(message))
        members[turn % 2].acknowledge(message)
    return {"all_once": are_all(received, 20), "both": all(received)}


def _send_keyed(run: Run) -> None:
    producer = run.producer()
    for number in range(KEYS * ROUNDS):
        producer.send(str(number).encode(), partition_key=f"k{number % KEYS}")


def _numbers_by_key(values: list[str]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for value in values:
        found[int(value) % KEYS].append(int(value))
    return found


def key_shared(run: Run) -> Outcome:
    members = [run.consumer(consumer_type=ConsumerType.KeyShared, consumer_name=name) for name in "ab"]
    _send_keyed(run)
    received = [_numbers_by_key(values) for values in gather(members, KEYS * ROUNDS)]
    return {
        "all_once": are_all((number for each in received for number in each.values()), KEYS * ROUNDS),
        "both": all(received),
        "one_member_per_key": not received[0].keys() & received[1].keys(),
        "in_order": all(numbers == sorted(numbers) for each in received for numbers in each.values()),
    }


def key_shared_sticky(run: Run) -> Outcome:
    members = [
        run.consumer(
            consumer_type=ConsumerType.KeyShared,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[range_]),
        )
        for range_ in ((0, 32767), (32768, 65535))
    ]
    _send_keyed(run)
    received = [_numbers_by_key(values) for values in gather(members, KEYS * ROUNDS)]
    return {"low": sorted(received[0]), "high": sorted(received[1])}


def ack_individual(run: Run) -> Outcome:
    consumer = run.consumer()
    run.send(range(10))
    for message in receive(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    return {"again": texts(rest(run.consumer()))}


def ack_cumulative(run: Run) -> Outcome:
    consumer = run.consumer()
    run.send(range(10))
    consumer.acknowledge_cumulative(receive(consumer, 5)[-1])
    consumer.close()
    return {"again": texts(rest(run.consumer()))}


def ack_cumulative_in_batch(run: Run) -> Outcome:
    consumer = run.consumer(batch_index_ack_enabled=True)
    run.send_batch(range(10))
    consumer.acknowledge_cumulative(receive(consumer, 5)[-1])
    consumer.close()
    return {"again": texts(rest(run.consumer(batch_index_ack_enabled=True)))}


def ack_batch_index(run: Run) -> Outcome:
    again = {}
    for type_ in (ConsumerType.Exclusive, ConsumerType.Shared):
        suffix = type_.name
        consumer = run.consumer(suffix, consumer_type=type_, batch_index_ack_enabled=True)
        run.send_batch(range(10), suffix)
        for message in receive(consumer, 10)[::2]:
            consumer.acknowledge(message)
        consumer.close()
        again[suffix] = texts(rest(run.consumer(suffix, consumer_type=type_, batch_index_ack_enabled=True)))
    return again


def ack_whole_batch(run: Run) -> Outcome:
    """Without batch index acknowledgement, a batch comes again as a whole until all its messages are acknowledged."""
    consumer = run.consumer()
    run.send_batch(range(5))
    for message in receive(consumer, 5)[:3]:
        consumer.acknowledge(message)
    consumer.close()
    again = texts(rest(consumer := run.consumer()))
    consumer.close()
    return {"again": again, "left": texts(rest(run.consumer()))}


def negative_acks(run: Run) -> Outcome:
    consumer = run.consumer(consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=NACK_MS)
    run.send(range(4))
    counts: dict[str, list[int]] = defaultdict(list)
    for _ in range(4 + 2 + 2):
        (message,) = receive(consumer, 1)
        counts[text(message)].append(message.redelivery_count())
        if int(text(message)) % 2 and message.redelivery_count() < 2:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    return {"counts": counts, "left": texts(rest(consumer))}


def negative_ack_in_batch(run: Run) -> Outcome:
    """With batch index acknowledgement, only the rejected message of a batch comes again."""
    consumer = run.consumer(
        consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=NACK_MS, batch_index_ack_enabled=True
    )
    run.send_batch(range(5))
    counts: dict[str, list[int]] = defaultdict(list)
    for message in receive(consumer, 5):
        counts[text(message)].append(message.redelivery_count())
        if text(message) == "2":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    for message in receive(consumer, 1, acknowledge=True):
        counts[text(message)].append(message.redelivery_count())
    return {"counts": counts, "left": texts(rest(consumer))}


def dead_letters(run: Run) -> Outcome:
    consumer = run.consumer(
        consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=NACK_MS,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2),
    )  # fmt: skip
    dead = run.consumer("-s-DLQ")
    run.send(range(3))
    counts: dict[str, list[int]] = defaultdict(list)
    for _ in range(3 + 2):
        (message,) = receive(consumer, 1)
        counts[text(message)].append(message.redelivery_count())
        if text(message) == "1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    (letter,) = receive(dead, 1)
    consumer.close()
    return {
        "counts": counts, "dead": text(letter), "real_topic": letter.properties()["REAL_TOPIC"] == run.topic(),
        "left": texts(rest(run.consumer(consumer_type=ConsumerType.Shared))),
    }  # fmt: skip


def delayed_shared(run: Run) -> Outcome:
    consumer, producer = run.consumer(consumer_type=ConsumerType.Shared), run.producer()
    producer.send(b"delayed", deliver_after=DELAY)
    producer.send(b"now")
    return {"received": texts(receive(consumer, 2))}


def delayed_exclusive(run: Run) -> Outcome:
    consumer, producer = run.consumer(), run.producer()
    producer.send(b"delayed", deliver_after=LONG_DELAY)
    producer.send(b"now")
    return {"received": texts(receive(consumer, 2))}


def delayed_ack(run: Run) -> Outcome:
    """A delayed message does not hold the acknowledgement of later ones."""
    consumer, producer = run.consumer(consumer_type=ConsumerType.Shared), run.producer()
    producer.send(b"delayed", deliver_after=DELAY)
    for number in range(5):
        producer.send(str(number).encode())
    first = texts(receive(consumer, 5, acknowledge=True))
    consumer.close()
    consumer = run.consumer(consumer_type=ConsumerType.Shared)
    again = texts(receive(consumer, 1, acknowledge=True))
    return {"first": first, "again": again + texts(rest(consumer))}


def unacknowledged(run: Run) -> Outcome:
    """What a closed consumer of a shared subscription has not acknowledged goes to the others."""
    first = run.consumer(consumer_type=ConsumerType.Shared)
    run.send(range(5))
    kept = ids(receive(first, 5))
    second = run.consumer(consumer_type=ConsumerType.Shared)
    first.close()
    messages = receive(second, 5)
    return {"received": sorted(texts(messages)), "same_ids": sorted(ids(messages)) == kept}


FEATURES: dict[str, Feature] = {
    feature.__name__: feature
    for feature in (
        exclusive, failover, shared, shared_zero_queue, key_shared, key_shared_sticky, unacknowledged, ack_individual,
        ack_cumulative, ack_cumulative_in_batch, ack_batch_index, ack_whole_batch, negative_acks, negative_ack_in_batch,
        dead_letters, delayed_shared, delayed_exclusive, delayed_ack,
    )
}  # fmt: skip
