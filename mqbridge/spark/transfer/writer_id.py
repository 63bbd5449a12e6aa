"""The identity of a writer: stored messages name it in their origins, and a writer skips only messages that name it.

Everything by which two writes of one source message differ is a part of it. Otherwise the copy of one job would count as stored
by another job, whose copy would be missing.
"""

from dataclasses import dataclass
from hashlib import sha256

import orjson

DEAD_LETTERS = "dead letters"
"""What a job writes to its dead-letter topic; a target is the other kind of `purpose`."""
_ID_DIGITS = 16
"""Hexadecimal digits of an id: 64 bits, so the ids of a million writers differ with a probability above 0.99999997."""


@dataclass(frozen=True, slots=True)
class SourceJob:
    """A job, and the cluster from which it reads.

    name     the option `jobId`, the id of a streaming query, or a unique name; the same in every attempt
    cluster  identity of the cluster (`ClusterRef.identity`), because two configurations may give one name to two clusters
    """

    name: str
    cluster: str

    def writer_id(self, purpose: str) -> str:
        """Return the id of the writer for a target or the dead letters. The origins contain the source's topic and partition."""
        return sha256(orjson.dumps([self.name, self.cluster, purpose])).hexdigest()[:_ID_DIGITS]

    def target_writer_id(self, number: int, topic: str) -> str:
        """Return the id of the writer into the target with this number in the spec.

        Two targets may be one topic under two names, and then store two copies. The cluster is not a part of the id: under other
        addresses it would be another writer.
        """
        return self.writer_id(f"{number} {topic}")
