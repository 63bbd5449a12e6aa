"""The hand-written encoder of single-message metadata writes the same bytes as protobuf."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.pulsar.library.batching import OutgoingMessage
from mqbridge.pulsar.wire.batch import frame_message
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import SingleMessageMetadata

TEXT = st.text(max_size=200)


@given(
    payload=st.none() | st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 70_000]).map(bytes),
    properties=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    key=st.none() | TEXT | st.binary(max_size=200),
    ordering_key=st.none() | st.binary(max_size=200),
    event_time=st.integers(0, (1 << 63) - 1),
)
def test_an_encoded_prefix_equals_protobufs(
    payload: bytes | None,
    properties: tuple[tuple[str, str], ...],
    key: str | bytes | None,
    ordering_key: bytes | None,
    event_time: int,
) -> None:
    single = SingleMessageMetadata(ordering_key=ordering_key, event_time=event_time or None, null_value=payload is None or None)
    for name, value in properties:
        single.properties.add(key=name, value=value)
    if isinstance(key, bytes):
        single.partition_key, single.partition_key_b64_encoded = base64.b64encode(key).decode(), True
    elif key is not None:
        single.partition_key = key
    message = OutgoingMessage(payload, key=key, ordering_key=ordering_key, properties=properties, event_time=event_time)
    assert message.batch_prefix() + (payload or b"") == frame_message(single, payload or b"")


def test_the_prefix_of_a_message_with_only_a_payload() -> None:
    for size in (0, 127, 128, 16_383, 16_384, 5 << 20):
        payload = bytes(size)
        assert OutgoingMessage(payload).batch_prefix() + payload == frame_message(SingleMessageMetadata(), payload)
