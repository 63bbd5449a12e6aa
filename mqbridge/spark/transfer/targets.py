"""Opens the targets of a transfer, and asks them what they hold of its source."""

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
from mqbridge.gateway.closing import close_by
from mqbridge.gateway.endpoints import loop_guard
from mqbridge.gateway.plan import outbound_spec
from mqbridge.message import NO_SOURCE, Partition, Position, format_position, origin_prefix
from mqbridge.routing.edits import Edit
from mqbridge.routing.topics import Selected, render, select
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.transfer.dead_letters import BoundedDeadLetters
from mqbridge.spark.transfer.resume import ResumedTarget, StoredBefore, find_dead, find_ends, find_stored
from mqbridge.spark.transfer.spec import Replay, TargetsSpec, TopicKey
from mqbridge.spark.transfer.tally import Tally
from mqbridge.spark.transfer.target_partitions import CheckedOutbound, NoOutbound, RowPartitioner

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""How long an outbound tries again by itself before the transfer opens it anew, where it may try again at all."""

FindCluster = Callable[[ClusterRef], AbstractAsyncContextManager[Cluster]]
"""`Portal.cluster`, or what stands for it in tests."""


def sender_of(job: str, source: Partition) -> str:
    """The sender's name of a job and a source partition: nobody else sends its messages for this job at the same time."""
    return quote(f"mqbridge|{job}|{origin_prefix(source)}", safe="|")


@dataclass(frozen=True, slots=True)
class Opening:
    """What targets are opened for. `replay` is None where nothing from the position `first` on can be stored."""

    spec: TargetsSpec
    source: Partition
    job: str
    first: Position
    replay: Replay | None

    @property
    def selected(self) -> Selected:
        """The source topic with its words for target templates. Raises ConfigError where no pattern of the route matches it."""
        topic = self.source.topic
        if not self.spec.source_topics:
            return Selected(topic, {"topic": topic})
        for selected in select(self.spec.source_topics, [topic]):
            if selected.topic == topic:
                return selected
        raise ConfigError(f"route {self.spec.name!r} does not take the topic {topic!r}")

    @property
    def sender(self) -> str | None:
        """The sender's name; None for messages that have no identity, and where each may be stored more than once."""
        return sender_of(self.job, self.source) if self.spec.deduplicate and self.source is not NO_SOURCE else None


class OpenTargets:
    """The targets and dead letters of one opening. A context of `open_targets`."""

    def __init__(self, opening: Opening, clusters: Mapping[str, Cluster], tally: Tally) -> None:
        self.targets: list[ResumedTarget] = []
        self.dead_letters: DeadLetters | None = None
        self.began: dict[TopicKey, dict[int, Position]] = {}
        """Where the topics ended, where nothing of the source from the first message on can be stored before that."""
        self._opening, self._spec, self._clusters, self._tally = opening, opening.spec, clusters, tally
        self._outbounds: list[Outbound] = []

    async def open(self) -> None:
        """Open all. Raises ConfigError, ClusterError."""
        letters, dead = self._spec.delivery.dead_letter, dict[str, set[Position]]()
        opening = self._opening
        if letters is not None:
            outbound = await self._outbound(
                letters.cluster, letters.topic, None, sender=None, retries_unanswered=opening.sender is None
            )
            label = f"{letters.cluster}/{letters.topic}"
            self.dead_letters = BoundedDeadLetters(self._spec.name, outbound, label, self._spec.max_dead_letters)
            if opening.sender is not None:
                dead = await self._dead(self._clusters[letters.cluster], letters.topic)
        selected = opening.selected
        for config in self._spec.targets:
            self.targets.append(await self._target(config, selected, dead))

    async def close(self, deadline: float | None) -> None:
        """Close all that is open."""
        outbounds, self._outbounds = self._outbounds, []
        closing = (outbound.close(deadline) for outbound in outbounds)
        await close_by(deadline, f"closing the targets of {self._opening.source}", *closing)

    async def _target(self, config: TargetConfig, selected: Selected, dead: Mapping[str, set[Position]]) -> ResumedTarget:
        cluster, opening = self._clusters[config.cluster], self._opening
        name = config.topic if self._spec.by_rows else render(config.topic, selected)
        label = f"{config.cluster}/{name}"
        if any(target.label == label for target in self.targets) and opening.sender is not None:
            raise ConfigError(f"two targets are {label}: of which of them a message is stored nobody could tell")
        outbound: Outbound
        if self._spec.by_rows and await cluster.describe(name) is None:
            outbound = NoOutbound(f"it is for the topic {name!r}, which is not there")
        else:
            outbound = CheckedOutbound(await self._outbound(config.cluster, name, config.options, opening.sender))
        before = None
        if opening.sender is not None:
            before = (await self._before(cluster, name, outbound)).without(dead.get(label, ()))
        return ResumedTarget(
            label,
            outbound,
            RowPartitioner(config.partitions, outbound, self._spec.placing, deduplicate=self._spec.deduplicate),
            self._tally,
            guard=await loop_guard(cluster, name, self._spec.delivery, self._tally.looped),
            edit=None if config.edit is None else Edit(config.edit, selected.words),
            before=before,
        )

    async def _before(self, cluster: Cluster, topic: str, outbound: Outbound) -> StoredBefore:
        """What the target holds. It is asked in any case: that is what keeps another sender of this name out, where it can be.

        Where nothing can be stored it looks no further back than now.
        """
        opening = self._opening
        if opening.replay is not None:
            since = opening.replay.since.get((cluster.name, topic))
            return await find_stored(cluster, topic, outbound, opening.source, opening.first, since)
        now = self.began[cluster.name, topic] = await find_ends(cluster, topic)
        last = await outbound.resume(opening.source, now)
        if any(position >= opening.first for position in last.values()):  # the system knows better
            log.warning(
                "%s: %s/%s has it up to %s already, as sent by %r before; all up to there that it holds is left out. If that "
                "source was made anew, take a new checkpoint and another jobId",
                opening.source,
                cluster.name,
                topic,
                format_position(max(last.values())),
                opening.sender,
            )
            return await find_stored(cluster, topic, outbound, opening.source, opening.first, None)
        return StoredBefore(last)

    async def _dead(self, cluster: Cluster, topic: str) -> dict[str, set[Position]]:
        opening = self._opening
        if opening.replay is None:
            self.began[cluster.name, topic] = await find_ends(cluster, topic)
            return {}
        return await find_dead(cluster, topic, opening.source, opening.first, opening.replay.since.get((cluster.name, topic)))

    async def _outbound(
        self, cluster: str, topic: str, options: BaseModel | None, sender: str | None, *, retries_unanswered: bool = True
    ) -> Outbound:
        spec = self._spec
        wanted = replace(
            outbound_spec(spec.delivery, topic, options),
            max_elapsed_s=RESEND_S,
            sender=sender,
            retries_unanswered=retries_unanswered,
        )
        if sender is not None:  # what is stored is told by the last message: nothing may overtake
            wanted = replace(wanted, ordered=True)
        outbound = await self._clusters[cluster].outbound(wanted)
        self._outbounds.append(outbound)
        return outbound


class RefusingTargets(OpenTargets):
    """For rows that say no topic: there is only the dead-letter topic."""

    async def _target(self, config: TargetConfig, selected: Selected, dead: Mapping[str, set[Position]]) -> ResumedTarget:  # noqa: ARG002
        outbound = NoOutbound("it says no topic to go to: its column `topic` is NULL, and there is no option `topic`")
        label = f"{config.cluster}/"
        before = None if self._opening.sender is None else StoredBefore({}).without(dead.get(label, ()))
        return ResumedTarget(label, outbound, RowPartitioner(config.partitions, outbound, "rule"), self._tally, before=before)


@asynccontextmanager
async def open_targets(opening: Opening, find_cluster: FindCluster, tally: Tally) -> AsyncIterator[OpenTargets]:
    """The targets, open for as long as the context; clusters are found as they are needed. Raises ConfigError, ClusterError."""
    async with AsyncExitStack() as stack:
        refs = opening.spec.clusters
        clusters = {name: await stack.enter_async_context(find_cluster(refs[name])) for name in opening.spec.used_clusters}
        kind = OpenTargets if all(target.topic for target in opening.spec.targets) else RefusingTargets
        targets = kind(opening, clusters, tally)
        try:
            await targets.open()
            yield targets
        finally:
            await targets.close(None)
