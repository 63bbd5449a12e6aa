"""A running listener: its ports, its server, and the services that it stands on.

STOPPED    nothing is bound; before `bind`, and after `close`
BOUND      the ports are bound, and nothing is accepted: the cluster may not be connected yet
SERVING    clients are served
DRAINING   clients are sent away, and what is in flight is finished

    bind      STOPPED -> BOUND
    start     BOUND -> SERVING
    close     BOUND, SERVING -> DRAINING -> STOPPED
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import UnitFormat
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import load_adapters
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ConfigError, LocalProtocolError
from mqbridge.groups.store import GroupStore
from mqbridge.listener.backing_groups import BackingGroups
from mqbridge.listener.definitions import Definitions, definitions_topic
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.groups import GroupNames, Groups, Partitions
from mqbridge.listener.internal_topic import InternalTopic
from mqbridge.listener.limits import InFlightBytes, UnacknowledgedBytes, limited
from mqbridge.listener.notes import Notes
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.parking import Parking, is_default_parking_topic, parking_name
from mqbridge.listener.publishers import Publishers
from mqbridge.listener.server import ProtocolServer, ServedSystem, Services
from mqbridge.listener.topics import ListenedTopics, TopicTemplate
from mqbridge.net.http_server import HttpServer
from mqbridge.net.listen import ListeningPort, ListenLimits
from mqbridge.net.tasks import spawn

log = logging.getLogger(__name__)

HANDSHAKE_S = 30.0
"""Time for the handshake of a connection: that of a real Pulsar broker."""
DRAIN_FRACTION = 0.6
"""Fraction of the time until the deadline that clients get to finish what is in flight."""
GRACE_S = 1.0
"""Time after the deadline that a step of closing gets that obeys it."""
LAST_S = 1.0
"""Time before the deadline at which the last connections are closed, so that groups are left in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The settings of a listener, from its configuration; see `mqbridge.config.options.listener`."""

    name: str
    system: str
    host: str
    port: int
    web: tuple[str, int] | None
    advertise: str | None
    cluster: str
    topics: str
    owns_groups: bool
    group: str
    parking: str
    create_partitions: int | None
    manage: bool
    deduplicate: bool
    dead_letter_cluster: str
    dead_letter_topic: str
    connections: int
    in_flight_bytes: int
    unacknowledged_bytes: int
    unacknowledged_span: int


class ListenerState(Enum):
    """The state of a listener, see the module."""

    STOPPED = "stopped"
    BOUND = "bound"
    SERVING = "serving"
    DRAINING = "draining"


class Listener:
    """See the module. Call `bind`, `start` and `close`."""

    def __init__(
        self,
        settings: ListenerSettings,
        system: ServedSystem,
        cluster: Cluster,
        dead_letter_cluster: Cluster,
        store: GroupStore | None,
        member: str,
    ) -> None:
        """`store` is the state of groups, which `owns_groups` requires; `member` names this gateway for operators."""
        self.settings, self.state = settings, ListenerState.STOPPED
        self.in_flight = InFlightBytes(settings.in_flight_bytes)
        self.unacknowledged = UnacknowledgedBytes(settings.unacknowledged_bytes)
        self._cluster, self._dead_letter_cluster = cluster, dead_letter_cluster
        self._dead_letters: DeadLetters | None = None
        self._dead_letters_lock = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        """The task that closes the listener."""
        notes = Notes(store, settings.name, cluster.name)
        limits = FeedLimits(self.unacknowledged, settings.unacknowledged_span)
        partitions = Partitions(cluster, settings.name, system.unit_format, limits)
        self.topics = ListenedTopics(
            cluster,
            TopicTemplate(settings.topics),
            create_partitions=settings.create_partitions,
            is_reserved=reserved_topics(settings, cluster),
            fixed_names=system.fixed_names,
            notes=notes,
        )
        self.publishers = Publishers(cluster, self.in_flight, self._open_dead_letters, in_order=system.answers_in_order)
        self.groups = self._make_groups(partitions, store, member)
        self.parking = Parking(
            cluster,
            settings.parking,
            unit_format_of(system),
            self.groups,
            partitions,
            Definitions(cluster, topic=f"{settings.parking}-moves"),
            self._open_dead_letters,
            member,
            self.in_flight,
        )
        if isinstance(self.groups, BackingGroups):
            self.groups.delete_unused = self.parking.delete_group
        self.server: ProtocolServer = system.make(
            Services(
                name=settings.name,
                cluster=cluster.name,
                topics=self.topics,
                publishers=self.publishers,
                groups=self.groups,
                partitions=partitions,
                parking=self.parking,
                definitions=Definitions(cluster),
                notes=notes,
                in_flight=self.in_flight,
                numbering=cluster.numbering,
                max_message_bytes=lambda: cluster.capabilities.max_message_bytes,
                may_manage=settings.manage,
                open_dead_letters=self._open_dead_letters,
                deduplicates=settings.deduplicate,
                memory=self.unacknowledged,
                delays=lambda: cluster.capabilities.delay,
                internal_topic=lambda end: InternalTopic(cluster, f"{settings.parking}-{end}", member, self.in_flight),
                advertise=settings.advertise,
                port=lambda: self.port.port,
            )
        )
        self.port = ListeningPort(
            settings.host,
            settings.port,
            self.server.make_session,
            ListenLimits(settings.connections, HANDSHAKE_S),
            self.server.refusal,
        )
        self.web_port = None if settings.web is None or self.server.web is None else HttpServer(*settings.web)

    def _make_groups(self, partitions: Partitions, store: GroupStore | None, member: str) -> Groups:
        settings, cluster = self.settings, self._cluster
        if not settings.owns_groups:
            names = GroupNames(settings.group, cluster.capabilities.group_name)
            return BackingGroups(cluster, partitions, names, store, member)
        if store is None:
            raise ConfigError("`groups: own` needs a state file", hint="Set `state`")
        return OwnGroups(partitions, store, settings.name, cluster.name, cluster)

    def bind(self) -> None:
        """Bind the ports. Raises ConfigError if one cannot be bound."""
        if self.state is not ListenerState.STOPPED:
            raise LocalProtocolError(f"listener {self.settings.name} is {self.state.value}")
        settings = self.settings
        _bind(self.port.bind, settings.name, "listen", f"{settings.host}:{settings.port}")
        if self.web_port is not None and settings.web is not None:
            try:
                _bind(self.web_port.bind, settings.name, "web", f"{settings.web[0]}:{settings.web[1]}")
            except ConfigError:
                self.port.stop_accepting()
                raise
        self.state = ListenerState.BOUND

    async def start(self) -> None:
        """Serve clients. Raises ClusterError if the server cannot start; the caller may call this again."""
        await self.server.start()
        await self.parking.start()
        if self.state is not ListenerState.BOUND:
            raise LocalProtocolError(f"listener {self.settings.name} is {self.state.value}")
        await self.port.start()
        if self.state is not ListenerState.BOUND:
            self.port.stop_accepting()
            raise LocalProtocolError(f"listener {self.settings.name} was closed while it was started")
        if self.web_port is not None:
            self.web_port.start(self.server.web)
        self.state = ListenerState.SERVING
        log.info(
            "listener %s serves %s clients at %s:%d from cluster %s",
            self.settings.name,
            self.settings.system,
            self.settings.host,
            self.port.port,
            self._cluster.name,
        )

    async def close(self, deadline: float) -> None:
        """Send clients away, finish what is in flight, leave the groups and release the ports, by the deadline (loop time)."""
        if self.state is ListenerState.STOPPED:
            return
        if self._closing is None:
            self._closing = spawn(self._close(deadline), f"closing of listener {self.settings.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float) -> None:
        was_serving, self.state = self.state is ListenerState.SERVING, ListenerState.DRAINING
        self.port.stop_accepting()
        now = asyncio.get_running_loop().time()
        drained_by, last = now + max(0.0, deadline - now) * DRAIN_FRACTION, max(now, deadline - LAST_S)
        if was_serving:
            await self._step("draining", self.server.drain(drained_by), last)
            await self._step("closing the port", self.port.close(last), deadline)
            if self.web_port is not None:
                await self._step("closing the web port", self.web_port.stop(), deadline)
        await asyncio.gather(  # a backing that stores nothing must not use up the time in which groups are left
            self._step("closing the server", self.server.close(deadline), deadline),
            self._step("closing the parking", self.parking.close(deadline), deadline),
            self._step("closing producers", self.publishers.close_all(deadline), deadline),
            self._step("leaving groups", self.groups.close(deadline), deadline),
        )
        if self._dead_letters is not None:
            await self._step("closing the dead-letter topic", self._dead_letters.outbound.close(deadline), deadline)
        if self.web_port is not None:
            self.web_port.unbind()
        self.state = ListenerState.STOPPED

    async def _step(self, action: str, step: Coroutine[Any, Any, None], deadline: float) -> None:
        """Do a step of closing, which ends soon after the deadline (loop time); its failure does not keep the others from it."""
        try:
            async with asyncio.timeout_at(deadline + GRACE_S):
                await step
        except TimeoutError:
            log.warning("listener %s: %s did not end in time", self.settings.name, action)
        except Exception:
            log.exception("listener %s: %s failed", self.settings.name, action)

    async def _open_dead_letters(self) -> DeadLetters:
        """Return the open dead-letter topic; create it if it does not exist. Raises ClusterError."""
        settings, cluster = self.settings, self._dead_letter_cluster
        async with limited("opening the dead-letter topic"), self._dead_letters_lock:
            broken = self._dead_letters
            if broken is not None and broken.is_broken:
                self._dead_letters = None
                spawn(broken.outbound.close(), f"close of {broken.label}")
            if self._dead_letters is None:
                if await cluster.describe(settings.dead_letter_topic) is None:
                    await cluster.create(settings.dead_letter_topic, 1)
                outbound = await cluster.outbound(OutboundSpec(settings.dead_letter_topic, stamp_origin=False))
                label = f"{settings.dead_letter_cluster}/{settings.dead_letter_topic}"
                self._dead_letters = DeadLetters(settings.name, outbound, label)
            return self._dead_letters


def unit_format_of(system: ServedSystem) -> UnitFormat | None:
    """Return the format of units of a server's clients; None if no installed adapter knows it."""
    adapters = load_adapters()
    formats: Iterable[UnitFormat] = adapters[system.system].formats if system.system in adapters else ()
    return next((each for each in formats if each.name == system.unit_format), None)


def _bind(bind: Callable[[], None], name: str, key: str, address: str) -> None:
    try:
        bind()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror or error}",
            path=f"listeners.{name}.{key}",
            hint="Choose another port, or stop the process that uses it",
        ) from error


def reserved_topics(settings: ListenerSettings, cluster: Cluster) -> Callable[[str], bool]:
    """Return a function that is True for the names of topics which the gateway uses itself: clients do not see them."""
    parking = parking_name(cluster.capabilities.topic_name, f"{settings.parking}-")
    rule = cluster.capabilities.topic_name
    exact = {settings.dead_letter_topic, definitions_topic(cluster), settings.parking}
    begins = f"{settings.parking}-", parking, "mqbridge-dead-"

    def is_reserved(name: str) -> bool:
        return name in exact or name.startswith(begins) or is_default_parking_topic(rule.unescape(name))

    return is_reserved
