"""Opens the targets of a transfer, and finds the messages of its source that they already store."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import quote

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound
from mqbridge.config.options.target import Target as TargetConfig
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ConfigError
from mqbridge.message import NO_SOURCE, Partition, Position, format_position, origin_prefix
from mqbridge.routes.closing import close_by_deadline
from mqbridge.routes.endpoints import loop_guard
from mqbridge.routes.plan import outbound_spec
from mqbridge.routing.edits import Edit
from mqbridge.routing.topics import SelectedTopic, render_target_topic, select_topics
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.transfer.dead_letters import BoundedDeadLetters
from mqbridge.spark.transfer.resume import ResumedTarget, StoredPositions, by_index, find_dead_letters, find_ends, find_stored
from mqbridge.spark.transfer.spec import Replay, TargetsSpec, TopicKey
from mqbridge.spark.transfer.tally import Tally
from mqbridge.spark.transfer.target_partitions import CheckedOutbound, RefusingOutbound, RowPartitioner
from mqbridge.spark.transfer.unnamed import warn_of_unnamed
from mqbridge.spark.transfer.writer_id import DEAD_LETTERS, SourceJob

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""How long an outbound retries a send before the send fails and the transfer opens the targets again."""

FindCluster = Callable[[ClusterRef], AbstractAsyncContextManager[Cluster]]
"""Returns a context that provides the connected cluster: `BackgroundLoop.cluster`, or its replacement in tests."""


def sender_name(job: str, source: Partition, writer: str) -> str:
    """Return the sender (producer name) under which every attempt of a writer sends the messages of a source partition.

    The writer's id makes it unique; people recognize the job and the source.
    """
    return quote(f"mqbridge|{job}|{origin_prefix(source, writer)}", safe="|")


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What the targets are opened for: the messages of one source, from `first` on.

    job     the job and the cluster of the source, the same in every attempt
    first   position of the first message to send
    replay  where an earlier attempt may have stored messages from `first` on; None if none can be stored already
    """

    spec: TargetsSpec
    source: Partition
    job: SourceJob
    first: Position
    replay: Replay | None

    @property
    def selected_topic(self) -> SelectedTopic:
        """The source topic, with the values that target topics may insert. Raises ConfigError if the route does not read it."""
        topic = self.source.topic
        if not self.spec.source_topics:
            return SelectedTopic(topic, {"topic": topic})
        for selected in select_topics(self.spec.source_topics, [topic]):
            if selected.topic == topic:
                return selected
        raise ConfigError(f"the source topics of route {self.spec.name!r} do not include {topic!r}")

    @property
    def dead_letter_writer(self) -> str | None:
        """The writer id in the origins of dead letters; None if stored ones are not found."""
        return self.job.writer_id(DEAD_LETTERS) if self.finds_stored else None

    @property
    def finds_stored(self) -> bool:
        """Whether stored messages are found and skipped. Not without deduplication or a source, which identifies messages."""
        return self.spec.deduplicate and self.source is not NO_SOURCE


class OpenTargets:
    """The targets and the dead-letter topic of one request, which `open_targets` yields."""

    def __init__(self, request: OpenRequest, clusters: Mapping[str, Cluster], tally: Tally) -> None:
        self.targets: list[ResumedTarget] = []
        """The opened targets, in the order of the spec."""
        self.dead_letters: DeadLetters | None = None
        """The opened dead-letter topic; None if the spec has none."""
        self.initial_ends: dict[TopicKey, dict[str, Position]] = {}
        """End positions of the topics before the first send. Empty in a replay: an earlier attempt may have sent already."""
        self._request, self._spec = request, request.spec
        self._clusters, self._tally = clusters, tally
        self._outbounds: list[Outbound] = []

    async def open(self) -> None:
        """Open all targets and the dead-letter topic. Raises ConfigError, ClusterError."""
        dead_letter, request = self._spec.delivery.dead_letter, self._request
        dead_positions: dict[str, set[Position]] = {}
        if dead_letter is not None:
            # With a producer name, the transfer finds stored dead letters in the topic after a failure. So the outbound must not
            # repeat sends without a response, which might store them twice.
            outbound = await self._open_outbound(
                dead_letter.cluster,
                dead_letter.topic,
                options=None,
                writer=request.dead_letter_writer,
                retries_unanswered=not request.finds_stored,
            )
            label = f"{dead_letter.cluster}/{dead_letter.topic}"
            self.dead_letters = BoundedDeadLetters(self._spec.name, outbound, label, self._spec.max_dead_letters)
            if request.finds_stored:
                dead_positions = await self._find_dead_letters(self._clusters[dead_letter.cluster], dead_letter.topic)
        selected_topic = request.selected_topic
        for number, config in enumerate(self._spec.targets):
            self.targets.append(await self._open_target(number, config, selected_topic, dead_positions))

    async def close(self, deadline: float | None) -> None:
        """Close all open outbounds, by the deadline (loop time); None: the default of `close_by_deadline`."""
        outbounds, self._outbounds = self._outbounds, []
        closing = (outbound.close(deadline) for outbound in outbounds)
        await close_by_deadline(deadline, f"closing the targets of {self._request.source}", *closing)

    async def _open_target(
        self, number: int, config: TargetConfig, selected_topic: SelectedTopic, dead_positions: Mapping[str, set[Position]]
    ) -> ResumedTarget:
        """Open the target with this number in the spec, and find the messages that it stores."""
        cluster, request = self._clusters[config.cluster], self._request
        topic = config.topic if self._spec.topic_from_rows else render_target_topic(config.topic, selected_topic)
        label = f"{config.cluster}/{topic}"
        writer = request.job.target_writer_id(number, topic) if request.finds_stored else None
        if any(target.label == label for target in self.targets) and writer is not None:
            raise ConfigError(
                f"two targets of route {self._spec.name!r} are {label}:"
                " a repeated attempt could not tell which of them stored a message",
                hint="Remove one of the targets, or give them different topics",
            )
        outbound: Outbound
        if self._spec.topic_from_rows and await cluster.describe(topic) is None:
            outbound = RefusingOutbound(f"the target topic {topic!r} does not exist")
        else:
            sender = None if writer is None else sender_name(request.job.name, request.source, writer)
            # `sender` makes the outbound send in order, see `_open_outbound`.
            outbound = CheckedOutbound(
                await self._open_outbound(config.cluster, topic, config.options, writer=writer, sender=sender)
            )
        stored_before = None
        if writer is not None:
            stored_before = await self._find_stored(cluster, topic, outbound, writer)
            stored_before = stored_before.with_dead_letters(dead_positions.get(label, ()))
        return ResumedTarget(
            label,
            outbound,
            RowPartitioner(config.partitions, outbound, self._spec.partition_mode, deduplicate=self._spec.deduplicate),
            self._tally,
            guard=await loop_guard(
                cluster,
                topic,
                self._spec.delivery,
                self._tally.count_looped,
                self._spec.cluster_names.get(config.cluster, ()),
            ),
            edit=None if config.edit is None else Edit(config.edit, selected_topic.words),
            stored_before=stored_before,
        )

    async def _find_stored(self, cluster: Cluster, topic: str, outbound: Outbound, writer: str) -> StoredPositions:
        """Find the positions that this writer has stored in the target. Always calls `resume`: it fences other senders.

        Without a replay, no message should be stored yet, so the search starts at the current ends.
        """
        request = self._request
        if request.replay is not None:
            since = request.replay.since.get((cluster.name, topic))
            stored = await find_stored(cluster, topic, outbound, request.source, request.first, writer, since)
            if request.replay.may_be_unnamed and not stored.last:
                await warn_of_unnamed(cluster, topic, request.source, request.first, since)
            return stored
        ends = self.initial_ends[cluster.name, topic] = await find_ends(cluster, topic)
        last = await outbound.resume(request.source, await by_index(cluster, topic, ends))
        # An earlier run of this job is still in the system's deduplication state.
        if any(position >= request.first for position in last.values()):
            log.warning(
                "%s: %s/%s already stores messages of this source up to position %s, sent by this job (writer id %s); these are "
                "skipped. If the source topic was deleted and created again, use a new checkpoint and another jobId",
                request.source,
                cluster.name,
                topic,
                format_position(max(last.values())),
                writer,
            )
            # The earlier job may have stored them anywhere, so search the whole topic.
            return await find_stored(cluster, topic, outbound, request.source, request.first, writer, since=None)
        return StoredPositions(last)

    async def _find_dead_letters(self, cluster: Cluster, topic: str) -> dict[str, set[Position]]:
        """Return the positions that have a dead letter, by the label of the refusing target. Without a replay there are none."""
        request = self._request
        if request.replay is None:
            self.initial_ends[cluster.name, topic] = await find_ends(cluster, topic)
            return {}
        since = request.replay.since.get((cluster.name, topic))
        return await find_dead_letters(cluster, topic, request.source, request.first, request.dead_letter_writer, since)

    async def _open_outbound(
        self,
        cluster: str,
        topic: str,
        options: BaseModel | None,
        *,
        writer: str | None,
        sender: str | None = None,
        retries_unanswered: bool = True,
    ) -> Outbound:
        spec = replace(
            outbound_spec(self._spec.delivery, topic, options),
            max_elapsed_s=RESEND_S,
            sender=sender,
            writer=writer,
            retries_unanswered=retries_unanswered,
        )
        if sender is not None:  # no message may overtake another: the last stored position proves that earlier ones are stored
            spec = replace(spec, ordered=True)
        outbound = await self._clusters[cluster].outbound(spec)
        self._outbounds.append(outbound)
        return outbound


class RefusingTargets(OpenTargets):
    """Targets for rows that name no topic. The targets refuse all messages, and only the dead-letter topic is opened."""

    async def _open_target(
        self,
        number: int,  # noqa: ARG002
        config: TargetConfig,
        selected_topic: SelectedTopic,  # noqa: ARG002
        dead_positions: Mapping[str, set[Position]],
    ) -> ResumedTarget:
        outbound = RefusingOutbound("it names no target topic: its column `topic` is NULL, and there is no option `topic`")
        label = f"{config.cluster}/"
        partitioner = RowPartitioner(config.partitions, outbound, partition_mode="rule")
        stored_before = None
        if self._request.finds_stored:
            stored_before = StoredPositions({}).with_dead_letters(dead_positions.get(label, ()))
        return ResumedTarget(label, outbound, partitioner, self._tally, stored_before=stored_before)


@asynccontextmanager
async def open_targets(request: OpenRequest, find_cluster: FindCluster, tally: Tally) -> AsyncIterator[OpenTargets]:
    """Connect the clusters of a request, open its targets, and close them with the context. Raises ConfigError, ClusterError."""
    async with AsyncExitStack() as stack:
        refs = request.spec.clusters
        clusters = {name: await stack.enter_async_context(find_cluster(refs[name])) for name in request.spec.used_clusters}
        # A target has an empty topic if rows name none.
        target_class = OpenTargets if all(target.topic for target in request.spec.targets) else RefusingTargets
        targets = target_class(request, clusters, tally)
        try:
            await targets.open()
            yield targets
        finally:
            await targets.close(deadline=None)
