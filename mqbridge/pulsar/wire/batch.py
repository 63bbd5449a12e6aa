"""Splits and joins the payload of a batch entry. For each message it contains: uint32 size, SingleMessageMetadata, payload.

The size is that of the metadata. This code makes a protobuf object per message; `single_metadata.py` encodes faster.
"""

import struct
from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

MAX_METADATA_BYTES = 5 << 20
"""Maximum size of the metadata of one message in a batch: by default a broker stores no larger entry, so only the metadata of a
compressed batch can be larger."""
MAX_BATCH_PROPERTIES = 1_000_000
"""Maximum number of properties of all messages in a batch. A property has at least 6 bytes, and takes about 200 bytes of memory
when it is decoded, so a compressed batch of a few KB could take gigabytes."""

_SIZE = struct.Struct(">I")


def split_batch(payload: bytes, count: int) -> list[tuple[SingleMessageMetadata, bytes]]:
    """Return the `count` messages of a batch. Raises RemoteProtocolError if the payload is anything but `count` messages."""
    return list(iterate_batch(payload, count))


def iterate_batch(payload: bytes, count: int) -> Iterator[tuple[SingleMessageMetadata, bytes]]:
    """Yield the messages that `split_batch` returns. May raise RemoteProtocolError after it has yielded some of them."""
    parse, unpack_size = SingleMessageMetadata.FromString, _SIZE.unpack_from
    at = index = properties = 0
    size = len(payload)
    is_large = size > MAX_METADATA_BYTES  # only then its metadata can exceed one of the limits
    while index < count and at + 4 <= size:
        begin = at + 4  # the metadata is payload[begin:end]
        end = begin + unpack_size(payload, at)[0]
        if end > size:
            break
        if is_large and end - begin > MAX_METADATA_BYTES:
            reason = f"its metadata have {end - begin} bytes, more than the limit of {MAX_METADATA_BYTES}"
            raise RemoteProtocolError(f"message {index} of a batch of {count} cannot be read: {reason}")
        try:
            single = parse(payload[begin:end])
        except DecodeError as error:
            reason = f"its {end - begin} bytes of metadata are no protobuf"
            raise RemoteProtocolError(f"message {index} of a batch of {count} cannot be read: {reason}") from error
        at = end + single.payload_size
        if not end <= at <= size:  # a damaged `payload_size` can be negative, or too large
            break
        if is_large and (properties := properties + len(single.properties)) > MAX_BATCH_PROPERTIES:
            raise RemoteProtocolError(f"a batch of {count} has more than {MAX_BATCH_PROPERTIES} properties")
        index += 1
        yield single, payload[end:at]
    if index != count or at != size:
        raise RemoteProtocolError(f"{size} bytes of a batch of {count} held {index} messages in {at}")


def frame_message(single: SingleMessageMetadata, payload: bytes) -> bytes:
    """Return the bytes of one message in a batch; sets `payload_size` of `single`."""
    single.payload_size = len(payload)
    metadata = single.SerializeToString()
    return _SIZE.pack(len(metadata)) + metadata + payload


def join_batch(messages: Iterable[tuple[SingleMessageMetadata, bytes]]) -> bytes:
    """Return the payload of a batch entry with these messages."""
    return b"".join([frame_message(single, payload) for single, payload in messages])


def unframe(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Remove the batch framing of an entry with one message: change `metadata` to those of the message; return its payload.

    The keys stay those of the entry, which has the keys of its first message. Raises RemoteProtocolError if the payload is
    anything but one message; then `metadata` is unchanged.
    """
    ((single, message),) = split_batch(payload, 1)
    metadata.ClearField("num_messages_in_batch")
    metadata.properties.MergeFrom(single.properties)
    if single.HasField("event_time"):
        metadata.event_time = single.event_time
    if single.null_value:
        metadata.null_value = True
    return message
