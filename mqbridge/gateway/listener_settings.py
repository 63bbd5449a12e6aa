"""Makes the settings of a listener from its options: fills in what depends on its name, its system and its cluster."""

from mqbridge.adapter.names import NameRule
from mqbridge.config.listened_systems import DEFAULT_HOST
from mqbridge.config.options.listener import ListenerConfig, ListenerCreate
from mqbridge.config.units import split_listen_address
from mqbridge.listener.listener import ListenerSettings
from mqbridge.listener.server import ServedSystem


def settings_of(
    config: ListenerConfig, system: ServedSystem, *, uniform_groups: bool, dead_letter_names: NameRule
) -> ListenerSettings:
    """Return the settings of a listener.

    `uniform_groups` is that of the cluster's adapter, `dead_letter_names` the rule for topics of the dead-letter cluster.
    """
    host, port = (DEFAULT_HOST, system.port) if config.listen is None else split_listen_address(config.listen)
    limits, letters = config.limits, config.sends.dead_letter
    return ListenerSettings(
        name=config.name,
        system=config.system,
        host=host,
        port=port,
        web=None if config.web is None else split_listen_address(config.web),
        advertise=config.advertise,
        cluster=config.cluster,
        topics=config.topics or system.default_topics,
        owns_groups=config.groups == "own",
        group=config.group or default_group(system, uniform_groups=uniform_groups),
        parking=config.parking or f"mqbridge-{config.name}",
        create_partitions=config.create.partitions if isinstance(config.create, ListenerCreate) else None,
        manage=config.manage,
        deduplicate=config.sends.deduplicate,
        dead_letter_cluster=config.dead_letter_cluster,
        dead_letter_topic=letters.topic or dead_letter_names.escape(f"mqbridge-dead-{config.name}"),
        connections=limits.connections,
        in_flight_bytes=limits.in_flight_bytes,
        unacknowledged_bytes=limits.unacknowledged_bytes,
        unacknowledged_span=limits.unacknowledged_span,
    )


def default_group(system: ServedSystem, *, uniform_groups: bool) -> str:
    """Return the default of the template that names groups.

    Clients whose groups are of single topics use one name in several of them; where all members of a group must read the same
    topics, each topic gets a group of its own.
    """
    return "{group}-{topic}" if uniform_groups and not system.groups_span_topics else "{group}"
