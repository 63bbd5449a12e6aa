"""Checks between options of different groups: names that must exist, be unique, or fit each other.

They read the plain data, so that they also find problems in a file that no model accepts. Values of a wrong type are skipped: the
models report those.
"""

import re
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
"""A mapping in the file, with its path."""


def cross_check(document: Document, adapters: Mapping[str, Adapter]) -> list[ConfigError]:
    """Return every problem between the parts of a configuration."""
    data = document.data
    routes = list(_sections(data.get("routes") if isinstance(data, dict) else None, ("routes",)))
    clusters = data.get("clusters") if isinstance(data, dict) else None
    known = set(clusters) if isinstance(clusters, dict) else set()
    errors = list(_unique_names(document, routes))
    if isinstance(clusters, dict):
        errors += _uniform_groups(document, routes, clusters, adapters)
    for path, route in routes:
        for end_path, end in _endpoints(path, route):
            errors.extend(_cluster_exists(document, end_path, end, known))
        for source in _section(route, "from", path):
            for target in _targets(path, route):
                errors.extend(_template(document, source, target))
                errors.extend(_edits(document, source, target))
    return errors


def _sections(value: Any, path: KeyPath) -> Iterator[Section]:
    if isinstance(value, list):
        yield from (((*path, index), item) for index, item in enumerate(value) if isinstance(item, dict))


def _section(parent: Mapping[str, Any], key: str, path: KeyPath) -> Iterator[Section]:
    value = parent.get(key)
    if isinstance(value, dict):
        yield (*path, key), value


def _targets(path: KeyPath, route: Mapping[str, Any]) -> Iterator[Section]:
    yield from _section(route, "to", path)
    yield from _sections(route.get("to"), (*path, "to"))


def _endpoints(path: KeyPath, route: Mapping[str, Any]) -> Iterator[Section]:
    yield from _section(route, "from", path)
    yield from _targets(path, route)
    for delivery_path, delivery in _section(route, "delivery", path):
        yield from _section(delivery, "dead_letter", delivery_path)


def _unique_names(document: Document, routes: list[Section]) -> Iterator[ConfigError]:
    seen: dict[str, KeyPath] = {}
    for path, route in routes:
        name = route.get("name")
        if not isinstance(name, str):
            continue
        if name in seen:
            yield document.error(
                (*path, "name"), f"the route name {name!r} is already used ({document.location(seen[name])})", "Choose another"
            )
        seen.setdefault(name, (*path, "name"))


def _uniform_groups(
    document: Document, routes: list[Section], clusters: Mapping[str, Any], adapters: Mapping[str, Adapter]
) -> Iterator[ConfigError]:
    """Check that all routes of a group subscribe alike, if their system requires it; one cluster may have several names."""
    seen: dict[tuple[str, str], tuple[KeyPath, str]] = {}
    for path, route in routes:
        for source_path, source in _section(route, "from", path):
            name, group = source.get("cluster"), source.get("group")
            cluster = clusters.get(name) if isinstance(name, str) else None
            if not isinstance(cluster, dict) or not isinstance(group, str):
                continue
            adapter = adapters.get(str(cluster.get("system")))
            if adapter is None or not adapter.uniform_groups:
                continue
            where, wanted = seen.setdefault((repr(cluster), group), (source_path, _subscription(source)))
            if wanted != _subscription(source):
                yield document.error(
                    (*source_path, "group"),
                    f"the group {group!r} is also that of the route in {document.location(where)}, which subscribes to something "
                    f"else; all members of a {adapter.system} group must subscribe to the same",
                    "Give this route a group of its own, or make one route of both",
                )


def _subscription(source: Mapping[str, Any]) -> str:
    """Return the subscription of a group as text: the topics as they are written, and the filter of the system."""
    types = source.get("msg_types")
    wanted = sorted(set(_source_topics(source))), sorted(map(str, types)) if isinstance(types, list) else types
    return repr((*wanted, source.get("options")))


def _cluster_exists(document: Document, path: KeyPath, end: Mapping[str, Any], known: set[str]) -> Iterator[ConfigError]:
    name = end.get("cluster")
    if isinstance(name, str) and name not in known:
        yield document.error((*path, "cluster"), f"there is no cluster {name!r}", nearest(name, known))


def _template(document: Document, source: Section, target: Section) -> Iterator[ConfigError]:
    path, end = target
    template = end.get("topic", "{topic}")
    topics = _source_topics(source[1])
    if not isinstance(template, str) or not topics:
        return
    try:
        used = topic_template_words(template)
        words = _given(topics)
    except ConfigError:
        return
    for word in sorted(used - words):
        yield document.error(
            (*path, "topic"), f"the template uses {{{word}}}, which the source topics do not give", _known_words(word, words)
        )
    if used <= words and end.get("cluster") == source[1].get("cluster"):
        for topic in topics:
            if not is_pattern(topic) and fill_topic_template(template, {"topic": topic}) == topic:
                problem = f"the route would write {topic!r} into itself"
                yield document.error((*path, "topic"), problem, "Choose another topic or cluster")


def _edits(document: Document, source: Section, target: Section) -> Iterator[ConfigError]:
    topics = _source_topics(source[1])
    for edit_path, edit in _section(target[1], "edit", target[0]):
        for path, template in templates_in(edit):
            try:
                known = MESSAGE_WORDS | (_given(topics) if topics else set())
                unknown = message_template_words(template) - known
            except ConfigError:
                continue
            for word in sorted(unknown):
                hint = nearest(word, known)
                if not hint.startswith("Did"):
                    hint = f"It may use {', '.join(f'{{{one}}}' for one in sorted(known))} and {{property:NAME}}"
                yield document.error((*edit_path, *path), f"the template uses {{{word}}}, which messages do not give", hint)


def _given(topics: list[str]) -> set[str]:
    """Return the words that all of the source topics define."""
    return set.intersection(*({"topic", *_groups(topic)} for topic in topics))


def _known_words(word: str, words: set[str]) -> str:
    near = nearest(word, words)
    return near if near.startswith("Did") else "It may use " + ", ".join(f"{{{known}}}" for known in sorted(words))


def _source_topics(source: Mapping[str, Any]) -> list[str]:
    topics = source.get("topics")
    written = [source.get("topic"), *(topics if isinstance(topics, list) else [])]
    return [topic for topic in written if isinstance(topic, str)]


def _groups(topic: str) -> dict[str, int]:
    pattern: re.Pattern[str] | None = compile_name_pattern(topic) if is_pattern(topic) else None
    return dict(pattern.groupindex) if pattern else {}
