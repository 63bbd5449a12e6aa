"""Messages that are larger than an entry: cut into chunks by the producer, joined again by the consumer (`chunk_joiner`).

Each chunk is an entry of its own with all the metadata, the same `uuid` and sequence id, and its number. Compression comes before
the cut.
"""

from collections.abc import Iterator

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

CHUNK_FIELDS = ("uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id")
CHUNK_HEAD_BYTES = 64
"""At most what the chunk fields add to the metadata, besides the producer's name in the uuid."""


def cut(metadata: MessageMetadata, payload: bytes, chunk_bytes: int) -> Iterator[tuple[MessageMetadata, bytes]]:
    """The chunks of a payload (compressed already) whose metadata has its producer name and sequence id."""
    total = -(-len(payload) // chunk_bytes)
    uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    for number in range(total):
        chunk = MessageMetadata()
        chunk.CopyFrom(metadata)
        chunk.uuid, chunk.chunk_id, chunk.num_chunks_from_msg, chunk.total_chunk_msg_size = uuid, number, total, len(payload)
        yield chunk, payload[number * chunk_bytes : (number + 1) * chunk_bytes]


def chunk_room(metadata: MessageMetadata, max_message_size: int) -> int:
    """Bytes of payload for each chunk: brokers and clients count the metadata in."""
    return max_message_size - metadata.ByteSize() - len(metadata.producer_name.encode()) - CHUNK_HEAD_BYTES


def is_chunk(metadata: MessageMetadata) -> bool:
    """Whether an entry is only a part of its message, or says so with numbers that cannot be (`why_no_chunk`)."""
    return metadata.HasField("num_chunks_from_msg") and (metadata.num_chunks_from_msg != 1 or metadata.chunk_id != 0)


def why_no_chunk(metadata: MessageMetadata) -> str | None:
    """What is impossible about the numbers of a chunk."""
    number, total, size = metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
    if 0 <= number < total and size >= 0:
        return None
    return f"chunk {number} of {total} of {metadata.uuid}, {size} bytes in all, cannot be"
