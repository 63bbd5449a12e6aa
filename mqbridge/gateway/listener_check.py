"""Finds what a listener would refuse to its clients, for `mqbridge check --connect`; changes nothing in the clusters."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Sharing
from mqbridge.adapter.operations import GroupRemover
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import Adapter
from mqbridge.config.options.config import Config
from mqbridge.config.options.listener import ListenerConfig, is_loopback
from mqbridge.errors import MqbridgeError
from mqbridge.gateway.listener_settings import settings_of
from mqbridge.gateway.listeners import group_store_path
from mqbridge.listener.listener import ListenerSettings, reserved_topics, unit_format_of
from mqbridge.listener.parked import ALL_LEVELS
from mqbridge.listener.parking import parking_name
from mqbridge.listener.server import ServedSystem, load_servers
from mqbridge.listener.topics import ListenedTopics, TopicTemplate

MAX_CHECKED_TOPICS = 20
"""Maximum number of topics whose retention is checked, and MAX_NAMED that of topics that are named."""
MAX_NAMED = 3
PROBE = "mqbridge-check"
"""Name of a topic that is not created: only whether clients may create such a one is checked."""


@dataclass(slots=True)
class ListenerFindings:
    """What was found about a listener."""

    address: str
    web: str | None
    errors: list[str] = field(default_factory=list)
    """What keeps it from serving clients."""
    warnings: list[str] = field(default_factory=list)
    """What is dangerous, or refused although the configuration asks for it."""
    notes: list[str] = field(default_factory=list)
    """What the clients of this system are refused, or get differently, because of the cluster."""


async def check_listener(
    config: ListenerConfig,
    whole: Config,
    clusters: Mapping[str, Cluster],
    adapters: Mapping[str, Adapter],
    servers: Mapping[str, ServedSystem] | None = None,
) -> ListenerFindings:
    """Check a listener of the configuration `whole`; `clusters` has the connected clusters.

    `servers` None means all that are installed.
    """
    adapter = adapters[whole.clusters[config.cluster].system]
    cluster, letters = clusters.get(config.cluster), clusters.get(config.dead_letter_cluster)
    names = next((each.capabilities.topic_name for each in (letters, cluster) if each is not None), None)
    system = (load_servers() if servers is None else servers)[config.system]
    if names is None or cluster is None or letters is None:
        address = config.listen or f"127.0.0.1:{system.port}"
        missing = sorted(name for name in config.clusters if name not in clusters)
        return ListenerFindings(address, config.web, [f"cluster {name!r} is not reached" for name in missing])
    settings = settings_of(config, system, uniform_groups=adapter.uniform_groups, dead_letter_names=names)
    found = ListenerFindings(f"{settings.host}:{settings.port}", config.web)
    found.warnings += _address_warnings(settings)
    found.warnings += _group_warnings(config, system, adapter)
    found.errors += await _dead_letter_errors(settings, letters)
    found.notes += _capability_notes(settings, system, cluster)
    if settings.owns_groups and whole.state is not None:
        found.notes.append(
            f"groups are kept in {group_store_path(whole.state)} by this gateway alone: another one would deliver all again"
        )
    await _check_topics(found, settings, system, cluster)
    await _check_made_topics(found, settings, system, cluster)
    await _check_parking(found, settings, system, cluster)
    return found


def _address_warnings(settings: ListenerSettings) -> Iterator[str]:
    """Yield a warning for each address that is in use, and for those that other machines can reach."""
    for host, port in [(settings.host, settings.port), *([] if settings.web is None else [settings.web])]:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            yield f"cannot listen on {host}:{port} now: {error.strerror or error}, unless this is the gateway that runs already"
        if not is_loopback(host):
            yield f"everybody who can reach {host}:{port} may read and write all topics: listeners do not authenticate"


def _group_warnings(config: ListenerConfig, system: ServedSystem, adapter: Adapter) -> Iterator[str]:
    """Yield a warning if a group of clients in two topics would be one group with different topics in the cluster."""
    is_shared = config.group is not None and "{topic}" not in config.group
    if config.groups == "backing" and is_shared and adapter.uniform_groups and not system.groups_span_topics:
        yield (
            f"the template `group: {config.group!r}` gives a subscription of two topics one {adapter.system} group, whose "
            "members must all read the same topics: use each subscription for one topic only, or write {group}-{topic}"
        )


async def _dead_letter_errors(settings: ListenerSettings, cluster: Cluster) -> list[str]:
    """Return why the dead-letter topic cannot be used, or not be created."""
    topic = settings.dead_letter_topic
    try:
        if await cluster.describe(topic) is None:
            await cluster.check_create(topic, 1)
        else:
            await cluster.check_outbound(OutboundSpec(topic, stamp_origin=False))
    except MqbridgeError as error:
        return [f"the dead-letter topic {cluster.name}/{topic}: {error}"]
    return []


def _capability_notes(settings: ListenerSettings, system: ServedSystem, cluster: Cluster) -> Iterator[str]:
    """Yield what clients are refused, or get differently, because of what the cluster can do."""
    capabilities = cluster.capabilities
    if not capabilities.list_topics:
        yield "topics cannot be listed: refused are lists of topics, and subscriptions by a pattern"
    if settings.manage and not capabilities.delete_topics:
        yield "topics cannot be deleted in this cluster: refused, although `manage` is true"
    if not settings.manage:
        yield "deleting topics and groups, resetting groups and skipping messages are refused (manage: false)"
    if cluster.operations is None:
        yield "the cluster gives no access to positions by time: starts and seeks to a time are refused"
    if not settings.owns_groups:
        yield from _backing_group_notes(system, cluster)
    if capabilities.max_message_bytes is not None:
        yield f"messages of at most {capabilities.max_message_bytes:,} bytes are accepted"
    if not capabilities.stable_positions:
        yield "a message that is delivered again may have another id"


def _backing_group_notes(system: ServedSystem, cluster: Cluster) -> Iterator[str]:
    """Yield what clients are refused because their groups are groups of the cluster."""
    operations = cluster.operations
    if operations is None:
        yield "the cluster cannot list or move groups: lists of groups are refused, and seeks of a group without consumers here"
    if not isinstance(operations, GroupRemover):
        yield "the cluster cannot delete groups: deleting them, and unsubscribing, is refused"
    supported = cluster.capabilities.sharing
    if missing := [sharing.value for sharing in Sharing if sharing in system.sharing - supported]:
        yield (
            f"the cluster's groups share partitions as {', '.join(sorted(each.value for each in supported))} only: "
            f"{', '.join(missing)} works among the consumers of one gateway; several gateways divide the partitions among them"
        )


async def _check_topics(found: ListenerFindings, settings: ListenerSettings, system: ServedSystem, cluster: Cluster) -> None:
    """Add what is found about the topics that exist, and about creating others."""
    if settings.create_partitions is None:
        found.notes.append("topics must exist: clients cannot create them (create: false)")
    elif not cluster.capabilities.create_topics:
        found.warnings.append("topics cannot be created in this cluster: those that clients use must exist (write create: false)")
    else:
        try:
            await cluster.check_create(cluster.capabilities.topic_name.escape(PROBE), settings.create_partitions)
        except MqbridgeError as error:
            found.warnings.append(f"topics that clients use and that do not exist cannot be created: {error}")
    if not cluster.capabilities.list_topics:
        return
    is_reserved = reserved_topics(settings, cluster)
    topics = _topics(settings, system, cluster)
    try:
        stored = sorted(await cluster.topics())
    except MqbridgeError as error:
        found.warnings.append(f"the topics cannot be listed: {error}")
        return
    visible = [name for name in stored if topics.client_name(name) is not None]
    hidden = [name for name in stored if name not in set(visible) and not is_reserved(name)]
    examples = [shown for name in visible[:MAX_NAMED] if (shown := topics.client_name(name)) is not None]
    found.notes.append(f"clients see {len(visible)} topics{_named(examples)}")
    if hidden:
        found.warnings.append(f"clients do not see {len(hidden)} topics, because their names look like escapes{_named(hidden)}")
    if settings.owns_groups and cluster.operations is not None:
        for name in visible[:MAX_CHECKED_TOPICS]:
            try:
                found.warnings += await cluster.operations.warnings(name)
            except MqbridgeError as error:
                found.warnings.append(f"the retention of topic {name} is not known: {error}")


async def _check_made_topics(found: ListenerFindings, settings: ListenerSettings, system: ServedSystem, cluster: Cluster) -> None:
    """Add a warning for each kind of topics that the listener cannot create when it needs them."""
    rule, topics = cluster.capabilities.topic_name, _topics(settings, system, cluster)
    for made in system.made_topics:
        name = parking_name(rule, f"{settings.parking}-{made.name}") if made.is_internal else topics.backing_name(made.name)
        if name is not None and (problem := await _creation_problem(name, cluster)) is not None:
            found.warnings.append(f"topics such as {name} cannot be created: {made.without}: {problem}")


async def _check_parking(found: ListenerFindings, settings: ListenerSettings, system: ServedSystem, cluster: Cluster) -> None:
    """Add what is found about the topics in which messages wait, where the cluster does not delay them by itself."""
    if cluster.capabilities.delay or not system.parks_messages or unit_format_of(system) is None:
        return
    name = parking_name(cluster.capabilities.topic_name, f"{settings.parking}-{ALL_LEVELS[-1]}")
    if (problem := await _creation_problem(name, cluster)) is not None:
        found.warnings.append(f"topics such as {name} cannot be created: messages cannot wait for their time: {problem}")
    elif cluster.operations is not None:
        try:
            warnings = await cluster.operations.warnings(name)
        except MqbridgeError as error:
            warnings = [f"its retention is not known: {error}"]
        found.warnings += [f"messages wait up to {ALL_LEVELS[-1]} in topic {name}: {warning}" for warning in warnings]


async def _creation_problem(name: str, cluster: Cluster) -> str | None:
    """Return why a topic with one partition cannot be created; None if it can, or exists."""
    if not cluster.capabilities.create_topics:
        return None if await cluster.describe(name) is not None else "topics cannot be created in this cluster"
    try:
        await cluster.check_create(name, 1)
    except MqbridgeError as error:
        return str(error)
    return None


def _topics(settings: ListenerSettings, system: ServedSystem, cluster: Cluster) -> ListenedTopics:
    """Return what knows by which names clients see topics."""
    return ListenedTopics(
        cluster,
        TopicTemplate(settings.topics),
        create_partitions=settings.create_partitions,
        is_reserved=reserved_topics(settings, cluster),
        fixed_names=system.fixed_names,
    )


def _named(names: list[str]) -> str:
    """Return the beginning of a list of names, for the end of a text."""
    return f": {', '.join(names[:MAX_NAMED])}{', …' if len(names) > MAX_NAMED else ''}" if names else ""
