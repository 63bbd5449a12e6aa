"""The graph of the topics that routes read and write, and the rules that keep a route from reading what it writes.

A topic that a route writes, directly or through other routes of the configuration, is excluded from the route's patterns, its
dead letters included. A route must not name its own copies and dead letters as sources. Without these rules, a pattern that
matches its own copies would create a topic at every refresh, without end.

A topic may have several names: clusters that share a server address are one cluster, and `ClusterModel.full_topic_name` is one
name for all spellings of a topic. The rules use only names, so every gateway with the same file and the same topics, also after a
restart, selects the same. Mirrors in both directions keep the names, so they are no such loop: their messages come back to the
topic where they began, and `mqbridge.routing.loops` drops them there.
"""

import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import BaseModel

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.document import Document
from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route
from mqbridge.config.patterns import BoundedPattern, is_pattern, topic_words
from mqbridge.config.templates import fill_topic_template, topic_template_words
from mqbridge.errors import ConfigError

MAX_COPIES = 1000
"""Maximum number of topics that are followed from one source topic. A chain has each route once, so few files come near it."""


class RealTopic(NamedTuple):
    """A topic of a real cluster: one configured name of the cluster, the same for all its names, and the topic's full name."""

    cluster: str
    topic: str


class Refusal(NamedTuple):
    """Why a route must not read a topic, and what to change."""

    problem: str
    hint: str


@dataclass(slots=True)
class Judgement:
    """The topics, of those that a route would select, that it must not read."""

    excluded: dict[str, str] = field(default_factory=dict)
    """Reasons by topic, for topics that only patterns select: the route leaves them out."""
    refused: dict[str, Refusal] = field(default_factory=dict)
    """Topics that the file names, or whose messages would come back to them: a person must change the file."""


class Hop(NamedTuple):
    """One route that a message passes, and whether it leaves the route as a dead letter."""

    route: Route
    is_dead_letter: bool


Chain = tuple[Hop, ...]


class TopicGraph:
    """The topics of these routes; `clusters` are the settings of their clusters, by name."""

    def __init__(self, routes: Iterable[Route], clusters: Mapping[str, BaseModel]) -> None:
        self._routes = tuple(routes)
        self._settings = {name: model for name, model in clusters.items() if isinstance(model, ClusterModel)}
        self._real_names = _real_names(self._settings)

    @classmethod
    def of(cls, config: Config) -> "TopicGraph":
        """Make the graph of a configuration."""
        return cls(config.routes, {name: cluster.settings for name, cluster in config.clusters.items()})

    def cluster_names(self, cluster: str) -> frozenset[str]:
        """Return all names that the configuration gives to this cluster."""
        real = self._real_name(cluster)
        return frozenset({cluster, *(name for name in self._settings if self._real_name(name) == real)})

    def judge(self, route: Route, topics: Iterable[str]) -> Judgement:
        """Judge the topics that the names and patterns of a route select; the result depends on no order."""
        judgement = Judgement()
        selected = {self._key(route.source.cluster, topic): topic for topic in topics}
        named = {self._key(route.source.cluster, name) for name in route.source.configured_topics if not is_pattern(name)}
        for key, topic in selected.items():
            if key in named and (refusal := self._refusal_of_named(route, topic, key)) is not None:
                judgement.refused[topic] = refusal
            elif key not in named and (reason := self._why_excluded(route, key, selected.values())) is not None:
                judgement.excluded[topic] = reason
        if self._may_return(route):
            self._follow(route, selected, named, judgement)
        return judgement

    def notes(self, route: Route) -> list[str]:
        """Return a text about each topic, known from the file alone, that a pattern of the route matches and that is not read."""
        if not any(map(is_pattern, route.source.configured_topics)):
            return []
        source = self._real_name(route.source.cluster)
        notes = [
            f"the topic {key.cluster}/{key.topic} is not read, although a pattern matches it: it is {what}"
            for key, what in self._constant_targets(route).items()
            if key.cluster == source and self._pattern_matches(route, key)
        ]
        notes += [
            f"topics that the route itself writes ({target.cluster}/{target.topic}) are not read, even if a pattern matches them"
            for target in route.targets
            if topic_template_words(target.topic) and self._real_name(target.cluster) == source
        ]
        return notes

    def dead_letter_loop(self, route: Route) -> list[Route]:
        """Return the routes, two or more, that this route's dead letters pass until they come back to it; [] if they do not."""
        chains = [[route]]
        for chain in chains:  # grows in the loop
            key = self._dead_letter(chain[-1])
            for reader in self._routes:
                if key is None or not self._is_named(reader, key):  # patterns exclude these topics
                    continue
                if reader.name == route.name and len(chain) > 1:
                    return chain
                if all(reader.name != passed.name for passed in chain) and len(chains) < MAX_COPIES:
                    chains.append([*chain, reader])
        return []

    # --- names --------------------------------------------------------------------------------------------------------

    def _real_name(self, cluster: str) -> str:
        return self._real_names.get(cluster, cluster)

    def _key(self, cluster: str, topic: str) -> RealTopic:
        settings = self._settings.get(cluster)
        return RealTopic(self._real_name(cluster), topic if settings is None else settings.full_topic_name(topic))

    def _listed_name(self, route: Route, key: RealTopic) -> str:
        """Return the name under which the source cluster of the route lists a topic."""
        settings = self._settings.get(route.source.cluster)
        return key.topic if settings is None else settings.listed_topic_name(key.topic)

    def _pattern_matches(self, route: Route, key: RealTopic) -> bool:
        """Return True if the route selects the topic by a pattern, and does not name it."""
        listed, names = self._listed_name(route, key), route.source.configured_topics
        return not self._is_named(route, key) and any(
            is_pattern(name) and topic_words(name, listed) is not None for name in names
        )

    def _is_named(self, route: Route, key: RealTopic) -> bool:
        """Return True if the route names the topic in its source."""
        names = route.source.configured_topics
        return any(not is_pattern(name) and self._key(route.source.cluster, name) == key for name in names)

    def _words(self, route: Route, key: RealTopic) -> dict[str, str] | None:
        """Return the words for the target templates of a route if it selects this topic; otherwise None."""
        if self._real_name(route.source.cluster) != key.cluster:
            return None
        names = route.source.configured_topics
        for name in names:
            if not is_pattern(name) and self._key(route.source.cluster, name) == key:
                return {"topic": name}
        if key == self._dead_letter(route):
            return None
        listed = self._listed_name(route, key)
        matches = (topic_words(name, listed) for name in names if is_pattern(name))
        return next((words for words in matches if words is not None), None)

    def _written(self, route: Route, words: Mapping[str, str]) -> Iterator[RealTopic]:
        """Yield the targets of a source topic with these words; a template with an unknown word has none."""
        for target in route.targets:
            if topic_template_words(target.topic) <= words.keys():
                yield self._key(target.cluster, fill_topic_template(target.topic, words))

    def _dead_letter(self, route: Route) -> RealTopic | None:
        letters = route.delivery.dead_letter
        return None if letters is None else self._key(letters.cluster, letters.topic)

    def _constant_targets(self, route: Route) -> dict[RealTopic, str]:
        """Return the topics that the route writes whatever it reads, each with a text about it."""
        targets = {
            self._key(target.cluster, target.topic): "a target of the route itself"
            for target in route.targets
            if not topic_template_words(target.topic)
        }
        letters = self._dead_letter(route)
        return targets if letters is None else targets | {letters: "the dead-letter topic of the route itself"}

    # --- single topics ------------------------------------------------------------------------------------------------

    def _refusal_of_named(self, route: Route, topic: str, key: RealTopic) -> Refusal | None:
        """Return why the route must not read a topic that the file names in its source."""
        if key != self._dead_letter(route):
            return None
        return Refusal(
            f"route {route.name!r} would read its own dead-letter topic {topic!r}",
            "Choose another dead-letter topic, or read this one with a route of its own",
        )

    def _why_excluded(self, route: Route, key: RealTopic, topics: Iterable[str]) -> str | None:
        """Return why a pattern of the route must not select this topic; None if nothing is wrong with the topic by itself."""
        if (what := self._constant_targets(route).get(key)) is not None:
            return f"it is {what}"
        for target in route.targets:
            if "topic" not in topic_template_words(target.topic):
                continue
            if self._real_name(target.cluster) == key.cluster and (copied := self._copied_topic(route, target.topic, key)):
                return f"its name is that of the route's own copy of {copied!r}"
            if _is_grown(self._listed_name(route, key), target.topic, topics):
                return (
                    f"the template {target.topic!r} is in its name again and again: other gateways bring back the route's copies"
                )
        return None

    def _copied_topic(self, route: Route, template: str, key: RealTopic) -> str | None:
        """Return the topic, existing or not, that the route would copy to this one; None if there is none."""
        pattern = _pattern_of_copies(template)
        for name in dict.fromkeys((self._listed_name(route, key), key.topic)):
            if (match := pattern.fullmatch(name)) is None:
                continue
            source = self._key(route.source.cluster, match["topic"])
            if source != key and (words := self._words(route, source)) is not None and key in self._written(route, words):
                return match["topic"]
        return None

    # --- chains of routes ---------------------------------------------------------------------------------------------

    def _may_return(self, route: Route) -> bool:
        """Return True if routes lead from the topics that the route writes back to its source cluster."""
        reached = self._written_clusters(route)
        for _ in self._routes:
            for other in self._routes:
                if self._real_name(other.source.cluster) in reached:
                    reached |= self._written_clusters(other)
        return self._real_name(route.source.cluster) in reached

    def _written_clusters(self, route: Route) -> set[str]:
        letters = self._dead_letter(route)
        return {self._real_name(target.cluster) for target in route.targets} | (set() if letters is None else {letters.cluster})

    def _follow(
        self, route: Route, selected: Mapping[RealTopic, str], named: Collection[RealTopic], judgement: Judgement
    ) -> None:
        """Judge the topics that are copies of others, through any chain of routes that begins with this one.

        A copy through other routes whose own copies add no further topic is left alone: names do not grow, and looped messages
        are dropped. So is a topic to which another route sends dead letters again.
        """
        sources = {key: topic for key, topic in selected.items() if topic not in judgement.excluded}
        copies = {key: self._copies(route, key) for key in sources}
        for origin, topic in sources.items():
            if origin in copies[origin] and (refusal := _refusal_of_loop(topic, copies[origin][origin])) is not None:
                judgement.refused[topic] = refusal
            for key, chain in copies[origin].items():
                copy = sources.get(key)
                if copy is None or key == origin:
                    continue
                back, further = copies[key].get(origin), copies[key].keys() - copies[origin].keys() - {origin}
                if back is not None and not _has_dead_letters((*chain, *back)):
                    if not _is_asked_for(chain):
                        judgement.refused[topic] = _refusal_of_ring(route, topic, copy, chain)
                elif key in named:
                    if len(chain) == 1 and not _has_dead_letters(chain):
                        judgement.refused[copy] = _refusal_of_own_copy(route, topic, copy)
                elif chain[-1].is_dead_letter or (not _has_dead_letters(chain) and (len(chain) == 1 or further)):
                    judgement.excluded[copy] = f"the route itself writes it{_way_of(chain)}, as a copy of {topic!r}"
        for topic in judgement.excluded:  # what is not read needs no other answer
            judgement.refused.pop(topic, None)

    def _copies(self, route: Route, source: RealTopic) -> dict[RealTopic, Chain]:
        """Return the topics that messages of a source topic reach through this route, each with the shortest chain of routes.

        A chain contains each route once: that is enough to come back to a topic that the first route selects.
        """
        copies: dict[RealTopic, Chain] = {}
        ends: list[tuple[RealTopic, Chain]] = [(source, ())]
        for key, chain in ends:  # grows in the loop
            if key == source and chain:
                continue  # the messages are back
            for reader in self._routes if chain else (route,):
                if any(reader.name == hop.route.name for hop in chain) or (words := self._words(reader, key)) is None:
                    continue
                written = [(target, Hop(reader, is_dead_letter=False)) for target in self._written(reader, words)]
                if (letters := self._dead_letter(reader)) is not None:
                    written.append((letters, Hop(reader, is_dead_letter=True)))
                for topic, hop in written:
                    if topic not in copies and len(copies) < MAX_COPIES:
                        copies[topic] = (*chain, hop)
                        ends.append((topic, copies[topic]))
        return copies


def loop_errors(document: Document, config: Config) -> list[ConfigError]:
    """Return an error for each source topic named in the file that its route must not read, and for each loop of dead letters."""
    graph = TopicGraph.of(config)
    errors = []
    for index, route in enumerate(config.routes):
        paths = {topic: ("routes", index, "from", "topics", number) for number, topic in enumerate(route.source.topics)}
        names = [name for name in route.source.configured_topics if not is_pattern(name)]
        for topic, refusal in graph.judge(route, names).refused.items():
            errors.append(document.error(paths.get(topic, ("routes", index, "from", "topic")), refusal.problem, refusal.hint))
        if routes := graph.dead_letter_loop(route):
            problem = f"a dead letter that each of {_route_names(routes)} refuses would go from one to the next without end"
            hint = "Give one of them a dead-letter topic that none of them reads"
            errors.append(document.error(("routes", index, "delivery", "dead_letter", "topic"), problem, hint))
    return errors


def _real_names(clusters: Mapping[str, ClusterModel]) -> dict[str, str]:
    """Return for each cluster the first name of a cluster that has a server in common with it, also through third ones."""
    real = {name: name for name in clusters}
    first_names: dict[str, str] = {}  # by server
    for name, settings in clusters.items():
        for server in settings.server_identities:
            joined = real[first_names.setdefault(server, name)]
            real = {key: joined if value == real[name] else value for key, value in real.items()}
    return real


def _route_names(routes: Sequence[Route]) -> str:
    return f"{'route' if len(routes) == 1 else 'the routes'} {', '.join(repr(route.name) for route in routes)}"


def _has_dead_letters(chain: Chain) -> bool:
    return any(hop.is_dead_letter for hop in chain)


def _way_of(chain: Chain) -> str:
    """Return a text about the routes after the first one, which begins with a blank; empty if there are none."""
    return "" if len(chain) == 1 else f" through {_route_names([hop.route for hop in chain[1:]])}"


def _is_asked_for(chain: Chain) -> bool:
    """Return True if the file says that the loop is intended: it limits the loop, or selects messages on the way.

    `prevent_loops: false` is written for dead letters that go back to the topic that they came from.
    """
    return any(
        {"max_hops", "prevent_loops"} & route.delivery.model_fields_set
        or "filter" in route.model_fields_set
        or route.source.msg_types
        for route, _ in chain
    )


def _refusal_of_own_copy(route: Route, topic: str, copy: str) -> Refusal:
    return Refusal(
        f"route {route.name!r} would read the topic {copy!r}, which it writes itself as a copy of {topic!r}",
        "Choose another target topic, or read the copy with a route of its own",
    )


def _refusal_of_ring(route: Route, topic: str, copy: str, chain: Chain) -> Refusal:
    return Refusal(
        f"route {route.name!r} would copy the topic {topic!r} to {copy!r}{_way_of(chain)}, and that one to {topic!r}",
        "Let the source select one of them only",
    )


def _refusal_of_loop(topic: str, chain: Chain) -> Refusal | None:
    """Return why a loop of these routes, which leads back to the topic, is refused; None if no message passes it twice.

    A loop through a dead-letter topic is not refused: only messages that a target refuses pass it, and a route that reads dead
    letters sends them again on purpose.
    """
    if _has_dead_letters(chain):
        return None
    routes = _route_names([hop.route for hop in chain])
    if len(chain) == 1:
        return Refusal(f"{routes} would copy the topic {topic!r} to itself", "Choose another target topic or cluster")
    is_prevented = all(hop.route.delivery.loops_prevented for hop in chain)
    max_hops = max(hop.route.delivery.max_hops for hop in chain)
    # Two routes: the first message that comes back names the target as its origin, and is dropped.
    if (is_prevented and (len(chain) == 2 or max_hops < len(chain))) or _is_asked_for(chain):
        return None
    times = f"until it has passed {max_hops} gateways" if is_prevented else "without end"
    hint = f"Set `delivery.max_hops: {len(chain) - 1}` of each of these routes, or remove one of them"
    if len(chain) == 2:
        hint = "Leave out `stamp_origin: false`, or remove one of these routes"
    return Refusal(f"{routes} form a loop: they would copy each message of the topic {topic!r} again {times}", hint)


def _pattern_of_copies(template: str) -> BoundedPattern:
    """Return a pattern for the names that a template with the word `topic` gives; its group `topic` is the source topic."""
    text, has_topic = "", False
    for literal, word, _, _ in string.Formatter().parse(template):
        text += re.escape(literal)
        if word == "topic" and not has_topic:
            text, has_topic = text + "(?P<topic>.+)", True
        elif word is not None:
            text += "(?P=topic)" if word == "topic" else ".+?"
    return BoundedPattern(text)


def _is_grown(name: str, template: str, topics: Iterable[str]) -> bool:
    """Return True if a topic's name contains the copy of a topic whose own name contains the copy of a third.

    So the name has passed this template twice already, and comes back through gateways that are not in this configuration.
    """
    literals = {literal.rpartition("/")[2] for literal, *_ in string.Formatter().parse(template)} - {""}
    if topic_template_words(template) != {"topic"} or not literals or any(name.count(literal) < 2 for literal in literals):
        return False
    sources = [topic.rpartition("/")[2] for topic in topics if len(topic) < len(name)]
    copies = {source: fill_topic_template(template, {"topic": source}).rpartition("/")[2] for source in sources}

    def contained(longer: str) -> list[str]:
        """Return the topics whose copy is contained in this name."""
        return [source for source, copy in copies.items() if copy in longer]

    return any(contained(source) for source in contained(name))
