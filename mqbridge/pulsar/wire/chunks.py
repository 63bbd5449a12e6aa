"""Splits messages that are larger than an entry into chunks; the consumer joins them again (`chunk_joiner`).

Each chunk is an entry of its own. It has all the metadata of the message, the message's `uuid` and sequence id, and its own chunk
id, counted from 0. The payload is compressed before it is split.
"""

from collections.abc import Iterator

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

CHUNK_FIELDS = ("uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id")
CHUNK_FIELDS_BYTES = 64
"""Maximum size of the chunk fields in the metadata, besides the producer's name in the uuid."""


def split_payload(
    metadata: MessageMetadata, payload: bytes | memoryview, chunk_bytes: int, attempt: int = 0
) -> Iterator[tuple[MessageMetadata, bytes | memoryview]]:
    """Yield metadata and payload of each chunk. `metadata` has the producer name and sequence id; `payload` is compressed.

    Each `attempt` to send the whole message has its own uuid, so that consumers join no chunks of two attempts.
    """
    total = -(-len(payload) // chunk_bytes)  # number of chunks, rounded up
    uuid = f"{metadata.producer_name}-{metadata.sequence_id}" + (f"-{attempt}" if attempt else "")
    for chunk_id in range(total):
        chunk = MessageMetadata()
        chunk.CopyFrom(metadata)
        chunk.uuid, chunk.chunk_id = uuid, chunk_id
        chunk.num_chunks_from_msg = total
        chunk.total_chunk_msg_size = len(payload)
        yield chunk, payload[chunk_id * chunk_bytes : (chunk_id + 1) * chunk_bytes]


def max_chunk_payload(metadata: MessageMetadata, max_message_size: int) -> int:
    """Return how many bytes of payload fit into a chunk: brokers and clients count the metadata in `max_message_size` too."""
    return max_message_size - metadata.ByteSize() - len(metadata.producer_name.encode()) - CHUNK_FIELDS_BYTES


def describes_chunk(metadata: MessageMetadata) -> bool:
    """Return False for the metadata of a whole message, which has no chunk fields or is chunk 0 of 1; otherwise True."""
    return metadata.HasField("num_chunks_from_msg") and (metadata.num_chunks_from_msg != 1 or metadata.chunk_id != 0)


def chunk_defect(metadata: MessageMetadata) -> str | None:
    """Return why the chunk fields are invalid; None if they are valid."""
    chunk_id = metadata.chunk_id
    total = metadata.num_chunks_from_msg
    size = metadata.total_chunk_msg_size
    if 0 <= chunk_id < total and size >= 0:
        return None
    return f"invalid chunk fields: chunk {chunk_id} of {total} of {metadata.uuid}, {size} bytes in total"
