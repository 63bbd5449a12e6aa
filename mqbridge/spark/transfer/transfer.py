"""Moves batches of one source partition into its targets, until everything is stored."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from mqbridge.adapter.cluster import Cluster
from mqbridge.message import Batch, Partition
from mqbridge.net.budget import Budget
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import Replay, TargetsSpec

FindCluster = Callable[[ClusterRef], AbstractAsyncContextManager[Cluster]]
"""`Portal.cluster`, or what stands for it in tests."""


class Transfer:
    """One source partition into the targets of a spec.

    `job` is the stable name of the job: with the source it makes the sender's name under which targets drop what is sent twice.
    `replay` is given when some of it may have been sent before. Several transfers of a task share one `budget`.
    On the portal's loop only.
    """

    def __init__(
        self,
        spec: TargetsSpec,
        source: Partition,
        job: str,
        *,
        replay: Replay | None = None,
        budget: Budget | None = None,
        find_cluster: FindCluster | None = None,
    ) -> None:
        raise NotImplementedError

    async def run(self, batches: AsyncIterator[Batch]) -> Counts:
        """Store all of it. The batches are of the source, ascending; NOWHERE's have no order and no identity.

        After a failure that may pass it opens the targets anew, asks them what they hold, and sends the rest, for as long as
        `write_timeout_s` without progress. What the iterator raises is raised.

        Raises ClusterError and DeliveryError when it is not all stored, ConfigError for targets that cannot be.
        """
        raise NotImplementedError
