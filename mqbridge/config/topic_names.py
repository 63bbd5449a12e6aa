"""Checks the names of target topics that are known from the file alone by the rules of their systems.

Names that a pattern gives are known only with its topics: `Cluster.check_create` checks them by the same rules.
"""

from collections.abc import Iterator

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.document import Document, KeyPath
from mqbridge.config.options.config import Config
from mqbridge.config.options.listener import ListenerConfig
from mqbridge.config.options.route import Route
from mqbridge.config.patterns import is_pattern
from mqbridge.config.templates import fill_topic_template, topic_template_words
from mqbridge.errors import ClusterError, ConfigError


def topic_name_errors(document: Document, config: Config) -> list[ConfigError]:
    """Return an error for each target and dead-letter topic whose name its system does not accept; one for each option."""
    errors: dict[KeyPath, ConfigError] = {}
    for path, cluster, topic in _all_written_names(document, config):
        settings = config.clusters[cluster].settings
        if path in errors or not isinstance(settings, ClusterModel):
            continue
        try:
            settings.check_topic_name(topic)
        except ConfigError as error:
            errors[path] = document.error(path, error.problem, error.hint)
        except ClusterError as error:
            errors[path] = document.error(path, str(error))
    return list(errors.values())


def _all_written_names(document: Document, config: Config) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the path of the option, the cluster, and the name, for all routes and listeners."""
    for index, route in enumerate(config.routes):
        has_list = isinstance(document.data["routes"][index]["to"], (list, tuple))
        yield from _written_names(route, ("routes", index), has_list=has_list)
    for index, listener in enumerate(config.listeners):
        yield from _listener_names(listener, ("listeners", index))


def _listener_names(listener: ListenerConfig, path: KeyPath) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the dead-letter topic that a listener names; its default is escaped where the system refuses it."""
    if (topic := listener.sends.dead_letter.topic) is not None:
        yield (*path, "sends", "dead_letter", "topic"), listener.dead_letter_cluster, topic


def _written_names(route: Route, path: KeyPath, *, has_list: bool) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the path of the option, the cluster, and the name, for each name that the route writes whatever topics exist.

    `path` is that of the route; `has_list` tells whether its option `to` is a list.
    """
    sources = [name for name in route.source.configured_topics if not is_pattern(name)]
    for number, target in enumerate(route.targets):
        option = (*path, "to", number, "topic") if has_list else (*path, "to", "topic")
        words = topic_template_words(target.topic)
        if not words:
            yield option, target.cluster, fill_topic_template(target.topic, {})
        elif words == {"topic"}:
            for source in sources:
                yield option, target.cluster, fill_topic_template(target.topic, {"topic": source})
    if (letters := route.delivery.dead_letter) is not None:
        yield (*path, "delivery", "dead_letter", "topic"), letters.cluster, letters.topic
