"""The fast code for batches, behind one door: messages of a batch, their bytes, and bytes from bytes.

It gives what the plain code in `properties` gives, and property tests hold it to that. It calls plain code for a single message
that is unusual, and refuses a batch that it cannot split. Nothing outside of this folder imports its modules.
"""

from mqbridge.pulsar.mapping.fast.decode import decode_batch
from mqbridge.pulsar.mapping.fast.encode import encode_batch
from mqbridge.pulsar.mapping.fast.restamp import RestampedBatch, restamp_batch

__all__ = ["RestampedBatch", "decode_batch", "encode_batch", "restamp_batch"]
