"""What a producer sends arrives as it was sent."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import pulsar
from pulsar.schema import JsonSchema, Record, String, StringSchema

from tests.sdk.features.python.run import Feature, Outcome, Run, ids, one_batch, receive, rest, text, texts

PROPERTIES = {"plain": "1", "empty": "", "text": "ä€"}
EVENT_TIME = 1_700_000_000_123
CODECS = ("LZ4", "ZLib", "ZSTD", "SNAPPY")
LARGE = 12_000_000
TOO_LARGE = 6_000_000
MANY = 5000


def describe(message: pulsar.Message) -> Outcome:
    return {
        "value": text(message),
        "properties": message.properties(),
        "key": message.partition_key() or None,
        "ordering_key": message.ordering_key() or None,
        "event_time": message.event_timestamp(),
        "has_publish_time": message.publish_timestamp() > 0,
        "redeliveries": message.redelivery_count(),
    }


def _send_described(run: Run, **settings: Any) -> list[pulsar.Message]:
    consumer, producer = run.consumer(), run.producer(**settings)
    fields = {"properties": PROPERTIES, "partition_key": "k", "ordering_key": "o", "event_timestamp": EVENT_TIME}
    producer.send_async(b"0", lambda *_: None, **fields)
    producer.send_async(b"1", lambda *_: None)
    producer.flush()
    return receive(consumer, 2)


def single(run: Run) -> Outcome:
    messages = _send_described(run)
    entries = {(each.message_id().ledger_id(), each.message_id().entry_id()) for each in messages}
    return {"messages": [describe(message) for message in messages], "entries": len(entries)}


def batched(run: Run) -> Outcome:
    messages = _send_described(run, **one_batch(2))
    entries = {(each.message_id().ledger_id(), each.message_id().entry_id()) for each in messages}
    indexes = [message.message_id().batch_index() for message in messages]
    return {"messages": [describe(message) for message in messages], "entries": len(entries), "indexes": indexes}


def message_ids(run: Run) -> Outcome:
    consumer = run.consumer()
    sent = run.send(range(3)) + run.send_batch(range(3, 6)) + run.send(range(6, 8))
    got = ids(receive(consumer, 8))
    return {
        "receipts_are_ids": sent == got,
        "ascending": all(a < b for a, b in pairwise(got)),
        "bytes_make_ids": [pulsar.MessageId.deserialize(each.serialize()) for each in got] == got,
    }


def compression(run: Run) -> Outcome:
    consumer, received = run.consumer(), {}
    for codec in CODECS:
        type_ = getattr(pulsar.CompressionType, codec)
        run.send(["x" * 10_000], compression_type=type_)
        run.send_batch(["x" * 100] * 10, compression_type=type_)
        received[codec.upper()] = [text(message).count("x") for message in receive(consumer, 11)]
    return received


def chunked(run: Run) -> Outcome:
    payload = bytes(index * 31 % 251 for index in range(1000)) * (LARGE // 1000)
    consumer, producer = run.consumer(), run.producer(chunking_enabled=True)
    producer.send(b"before")
    producer.send(payload, properties=PROPERTIES)
    producer.send(b"after")
    before, large, after = receive(consumer, 3, acknowledge=True)
    consumer.close()
    same = hashlib.sha256(large.data()).digest() == hashlib.sha256(payload).digest()
    return {
        "size": len(large.data()), "same": same, "properties": large.properties(),
        "around": texts([before, after]), "left": len(rest(run.consumer())),
    }  # fmt: skip


def encryption(run: Run) -> Outcome:
    keys = pulsar.CryptoKeyReader(f"{run.keys}/public.pem", f"{run.keys}/private.pem")
    with_key = run.consumer(name="with", crypto_key_reader=keys)
    without_key = run.consumer(name="without", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
    run.send_batch(["secret"] * 3, encryption_key="features", crypto_key_reader=keys)
    (unread,) = receive(without_key, 1)
    context = unread.encryption_context()
    return {
        "with_key": texts(receive(with_key, 3)),
        "hidden": b"secret" not in unread.data(),
        "key_names": [key.key for key in context.keys()],  # noqa: SIM118,
    }


def producer_names(run: Run) -> Outcome:
    consumer = run.consumer()
    named = run.producer(producer_name=f"named-{run.base}", initial_sequence_id=100)
    try:
        run.producer(producer_name=f"named-{run.base}")
        second = "accepted"
    except (pulsar.ProducerBusy, pulsar.ConnectError):
        second = "busy"
    for value in (b"0", b"1", b"2"):
        named.send(value)
    others = [run.producer(), run.producer()]
    for other in others:
        other.send(b"x")
    *seen, x, y = [message.producer_name() for message in receive(consumer, 5)]
    return {
        "names": [name == f"named-{run.base}" for name in seen],
        "generated": [x, y] == [other.producer_name() for other in others] and x != y and "" not in (x, y),
        "second": second,
        "last_sequence_id": named.last_sequence_id(),
    }


def deduplication(run: Run) -> Outcome:
    consumer, name = run.consumer(), f"named-{run.base}"
    producer = run.producer(producer_name=name)
    for number in (1, 2, 3, 2, 3, 4):
        producer.send(str(number).encode(), sequence_id=number)
    producer.close()
    producer = run.producer(producer_name=name)
    last = producer.last_sequence_id()
    for number in (3, 4, 5):
        producer.send(str(number).encode(), sequence_id=number)
    return {"received": texts(rest(consumer)), "last_sequence_id": last}


def many(run: Run) -> Outcome:
    """More messages than fit into the queue of the consumer, in batches as the client makes them."""
    consumer, producer = run.consumer(receiver_queue_size=100), run.producer(batching_enabled=True, max_pending_messages=MANY)
    for number in range(MANY):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    values = texts(receive(consumer, MANY, acknowledge=True))
    consumer.close()
    return {"received": len(values), "in_order": values == [*map(str, range(MANY))], "left": texts(rest(run.consumer()))}


def exclusive_producer(run: Run) -> Outcome:
    consumer, mode = run.consumer(), pulsar.ProducerAccessMode.Exclusive
    first, second = run.producer(access_mode=mode), "accepted"
    first.send(b"first")
    try:
        run.producer()
    except (pulsar.ProducerFenced, pulsar.ProducerBusy):
        second = "refused"
    first.close()
    run.producer(access_mode=mode).send(b"third")
    return {"second": second, "after_close": texts(receive(consumer, 2))}


class Named(Record):
    name = String()


def schema(run: Run) -> Outcome:
    consumer = run.consumer(schema=JsonSchema(Named))
    producer = run.producer(schema=JsonSchema(Named))
    for name in ("a", "b"):
        producer.send(Named(name=name))
    messages, other = receive(consumer, 2), "accepted"
    try:
        run.producer(schema=StringSchema())
    except pulsar.IncompatibleSchema:
        other = "refused"
    return {
        "received": [message.value().name for message in messages], "other_schema": other,
        "has_version": all(message.schema_version() for message in messages),
    }  # fmt: skip


def too_large(run: Run) -> Outcome:
    consumer, producer = run.consumer(), run.producer()
    try:
        producer.send(bytes(TOO_LARGE))
        error = None
    except pulsar.MessageTooBig:
        error = "too large"
    producer.send(b"after")
    return {"error": error, "received": texts(receive(consumer, 1))}


FEATURES: dict[str, Feature] = {
    feature.__name__: feature
    for feature in (
        single, batched, message_ids, compression, chunked, encryption, producer_names, deduplication, many,
        exclusive_producer, schema, too_large,
    )
}  # fmt: skip
