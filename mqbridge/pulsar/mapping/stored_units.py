"""Turns units into entries that a producer stores as they are."""

from collections.abc import Sequence

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.pulsar.mapping.request import unreadable_failure
from mqbridge.pulsar.mapping.unit_format import check_count
from mqbridge.pulsar.wire.entry import read_metadata
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

_OF_ANOTHER_CLUSTER = ("replicated_from", "marker_type", "txnid_least_bits", "txnid_most_bits")
"""Fields by which brokers treat an entry in a special way: a marker is not delivered, nor is a message of an aborted transaction;
transactions of another cluster have the same ids. Messages of such an entry are encoded anew, without these fields."""


class UnitToStore:
    """An entry to store as it is.

    data          the whole entry, whose last `payload_size` bytes are the payload
    metadata      its metadata
    indexes       the indexes that its messages have in the batch
    """

    __slots__ = ("data", "indexes", "metadata", "payload_size")

    def __init__(self, data: bytes, metadata: MessageMetadata, payload_size: int, indexes: range) -> None:
        self.data, self.metadata, self.payload_size, self.indexes = data, metadata, payload_size, indexes


def units_to_store(units: Sequence[Unit]) -> tuple[list[UnitToStore], list[MessageFailure]] | None:
    """Return the entries of a batch, and the failures of the messages of damaged ones.

    None if the batch must be decoded into messages: some of an entry's messages are not in it, or brokers of another cluster have
    set metadata.
    """
    entries: list[UnitToStore] = []
    failures: list[MessageFailure] = []
    begin = 0
    for unit in units:
        if unit.left_out:
            return None
        indexes, begin = range(begin, begin + unit.message_count), begin + unit.message_count
        try:
            metadata, payload_begin = read_metadata(unit.data)
            check_count(metadata, unit.message_count)
        except RemoteProtocolError as error:
            defect = str(error)
            failures += [unreadable_failure(index, defect) for index in indexes]
            continue
        if any(map(metadata.HasField, _OF_ANOTHER_CLUSTER)):
            return None
        entries.append(UnitToStore(unit.data, metadata, len(unit.data) - payload_begin, indexes))
    return entries, failures
