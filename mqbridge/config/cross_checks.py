"""Checks across option groups: clusters must exist, route names must be unique, templates must fit the source topics.

The checks read the plain data, so they also work on a file that the models reject. Values of a wrong type are skipped here,
because the models report them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mqbridge.adapter.registry import Adapter
from mqbridge.config.document import Document, KeyPath
from mqbridge.config.options.edit import templates_in
from mqbridge.config.patterns import compile_name_pattern, is_pattern
from mqbridge.config.problems import nearest
from mqbridge.config.templates import MESSAGE_WORDS, fill_topic_template, message_template_words, topic_template_words
from mqbridge.errors import ConfigError

Section = tuple[KeyPath, Mapping[str, Any]]
"""The path of a mapping in the file, and the mapping."""


def cross_check(document: Document, adapters: Mapping[str, Adapter]) -> list[ConfigError]:
    """Return the problems of all checks across option groups."""
    data = document.data
    routes = list(sections_of_list(data.get("routes") if isinstance(data, dict) else None, ("routes",)))
    clusters = data.get("clusters") if isinstance(data, dict) else None
    cluster_names = set(clusters) if isinstance(clusters, dict) else set()
    errors = list(duplicate_names(document, routes, "route"))
    if isinstance(clusters, dict):
        errors += _conflicting_groups(document, routes, clusters, adapters)
    errors += _unknown_optional_clusters(document, data.get("http") if isinstance(data, dict) else None, cluster_names)
    for path, route in routes:
        for endpoint_path, endpoint in _endpoints(path, route):
            errors.extend(unknown_cluster(document, endpoint_path, endpoint, cluster_names))
        for source in section(route, "from", path):
            for target in _targets(path, route):
                errors.extend(_topic_template_errors(document, source, target))
                errors.extend(_edit_template_errors(document, source, target))
    return errors


def sections_of_list(value: Any, path: KeyPath) -> Iterator[Section]:
    """Yield every mapping in the list; nothing if `value` is not a list."""
    if isinstance(value, list):
        yield from (((*path, index), item) for index, item in enumerate(value) if isinstance(item, dict))


def section(parent: Mapping[str, Any], key: str, path: KeyPath) -> Iterator[Section]:
    """Yield the mapping under this key of `parent`; nothing if the key is missing or its value is not a mapping."""
    value = parent.get(key)
    if isinstance(value, dict):
        yield (*path, key), value


def _targets(path: KeyPath, route: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the route's targets; `to` is one target or a list of targets."""
    yield from section(route, "to", path)
    yield from sections_of_list(route.get("to"), (*path, "to"))


def _endpoints(path: KeyPath, route: Mapping[str, Any]) -> Iterator[Section]:
    """Yield every section of the route that names a cluster: the source, the targets and the dead-letter topic."""
    yield from section(route, "from", path)
    yield from _targets(path, route)
    for delivery_path, delivery in section(route, "delivery", path):
        yield from section(delivery, "dead_letter", delivery_path)


def duplicate_names(document: Document, sections: list[Section], word: str) -> Iterator[ConfigError]:
    """Yield an error for every section that has the name of an earlier one; `word` says what they are, such as `route`."""
    first_paths: dict[str, KeyPath] = {}
    for path, body in sections:
        name = body.get("name")
        if not isinstance(name, str):
            continue
        if name in first_paths:
            problem = f"the {word} name {name!r} is already used ({document.location(first_paths[name])})"
            yield document.error((*path, "name"), problem, "Choose another name")
        first_paths.setdefault(name, (*path, "name"))


def _conflicting_groups(
    document: Document, routes: list[Section], clusters: Mapping[str, Any], adapters: Mapping[str, Adapter]
) -> Iterator[ConfigError]:
    """Yield an error for every route whose subscription (topics, types, options) differs from that of its group's first route.

    Only systems with `uniform_groups` are checked: they require that all members of a group subscribe to the same.

    Clusters with equal settings count as one cluster, whatever their names.
    """
    first_uses: dict[tuple[str, str], tuple[KeyPath, str]] = {}
    """Path and subscription of the first source, by the settings of its cluster and the name of its group."""
    for path, route in routes:
        for source_path, source in section(route, "from", path):
            name, group = source.get("cluster"), source.get("group")
            cluster = clusters.get(name) if isinstance(name, str) else None
            if not isinstance(cluster, dict) or not isinstance(group, str):
                continue
            adapter = adapters.get(str(cluster.get("system")))
            if adapter is None or not adapter.uniform_groups:
                continue
            first_path, expected = first_uses.setdefault((repr(cluster), group), (source_path, _subscription(source)))
            if expected != _subscription(source):
                yield document.error(
                    (*source_path, "group"),
                    f"the route in {document.location(first_path)} uses the group {group!r} too, with other topics, message "
                    f"types or options; all members of a {adapter.system} group must have the same subscription",
                    "Give this route its own group, or merge the two routes",
                )


def _subscription(source: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal subscriptions: the topics as written, the message types and the options."""
    types = source.get("msg_types")
    topics = sorted(set(_source_topics(source)))
    return repr((topics, sorted(map(str, types)) if isinstance(types, list) else types, source.get("options")))


def unknown_cluster(
    document: Document, path: KeyPath, endpoint: Mapping[str, Any], cluster_names: set[str]
) -> Iterator[ConfigError]:
    """Yield an error if the endpoint names a cluster that the file does not define."""
    name = endpoint.get("cluster")
    if isinstance(name, str) and name not in cluster_names:
        yield document.error((*path, "cluster"), f"there is no cluster {name!r}", nearest(name, cluster_names))


def _unknown_optional_clusters(document: Document, http: Any, cluster_names: set[str]) -> Iterator[ConfigError]:
    """Yield an error for each name in `http.ready_without` that is no cluster of the file."""
    option = http.get("ready_without") if isinstance(http, dict) else None
    for index, name in enumerate(option if isinstance(option, list) else [option]):
        if isinstance(name, str) and name not in cluster_names:
            path: KeyPath = ("http", "ready_without", index) if isinstance(option, list) else ("http", "ready_without")
            yield document.error(path, f"there is no cluster {name!r}", nearest(name, cluster_names))


def _topic_template_errors(document: Document, source: Section, target: Section) -> Iterator[ConfigError]:
    """Yield an error for each unknown word in the target's topic template, and for a topic that would be its own target.

    Yields nothing if the template or a pattern is invalid: the models report this.
    """
    path, body = target
    template = body.get("topic", "{topic}")
    topics = _source_topics(source[1])
    if not isinstance(template, str) or not topics:
        return
    try:
        used = topic_template_words(template)
        defined = _common_words(topics)
    except ConfigError:
        return
    for word in sorted(used - defined):
        yield document.error(
            (*path, "topic"), f"the template uses {{{word}}}, which the source topics do not define", _word_hint(word, defined)
        )
    if used <= defined and body.get("cluster") == source[1].get("cluster"):
        for topic in topics:
            if not is_pattern(topic) and fill_topic_template(template, {"topic": topic}) == topic:
                problem = f"the route would copy the topic {topic!r} to itself"
                yield document.error((*path, "topic"), problem, "Choose another topic or cluster")


def _edit_template_errors(document: Document, source: Section, target: Section) -> Iterator[ConfigError]:
    """Yield an error for each unknown word in the templates of the target's `edit`; invalid templates are skipped."""
    topics = _source_topics(source[1])
    for edit_path, edit in section(target[1], "edit", target[0]):
        for path, template in templates_in(edit):
            try:
                defined = MESSAGE_WORDS | (_common_words(topics) if topics else set())
                unknown = message_template_words(template) - defined
            except ConfigError:
                continue
            for word in sorted(unknown):
                hint = nearest(word, defined)
                if not hint.startswith("Did"):  # no defined word is near
                    hint = f"It may use {', '.join(f'{{{name}}}' for name in sorted(defined))} and {{property:NAME}}"
                yield document.error((*edit_path, *path), f"the template uses {{{word}}}, which is not defined here", hint)


def _common_words(topics: list[str]) -> set[str]:
    """Return the template words that every source topic defines: `topic`, and the named groups that all patterns share."""
    return set.intersection(*({"topic", *_named_groups(topic)} for topic in topics))


def _word_hint(word: str, words: set[str]) -> str:
    """Return a hint for an unknown word of a topic template: the nearest valid word, or all valid words."""
    near = nearest(word, words)
    return near if near.startswith("Did") else "It may use " + ", ".join(f"{{{known}}}" for known in sorted(words))


def _source_topics(source: Mapping[str, Any]) -> list[str]:
    """Return the names and patterns in `topic` and `topics`; values that are not text are skipped."""
    topics = source.get("topics")
    values = [source.get("topic"), *(topics if isinstance(topics, list) else [])]
    return [topic for topic in values if isinstance(topic, str)]


def _named_groups(topic: str) -> dict[str, int]:
    """Return the named groups of a pattern with their numbers; empty for an exact name. Raises ConfigError if it is invalid."""
    return dict(compile_name_pattern(topic).compiled.groupindex) if is_pattern(topic) else {}
