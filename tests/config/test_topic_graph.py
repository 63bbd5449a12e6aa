"""Routes that would read what they write: found in the file, or excluded by the names of topics."""

from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.config.options.config import Config
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.errors import ConfigError

CLUSTERS: dict[str, Any] = {name: {"system": "log", "path": f"{name}.db"} for name in "abc"}


def route(name: str, source: str | list[str], *targets: str, **delivery: Any) -> dict[str, Any]:
    """Make a route from `CLUSTER/TOPIC`, or several of one cluster, to targets; `dead_letter` is `CLUSTER/TOPIC` too."""
    sources = [source] if isinstance(source, str) else source
    if isinstance(letters := delivery.get("dead_letter"), str):
        delivery["dead_letter"] = end(letters)
    topics = [end(each)["topic"] for each in sources]
    return {
        "name": name,
        "from": {"cluster": end(sources[0])["cluster"], "topics": topics, "group": f"g-{name}"},
        "to": [end(target) for target in targets],
        "delivery": delivery,
    }


def end(text: str) -> dict[str, str]:
    cluster, _, topic = text.partition("/")
    return {"cluster": cluster, "topic": topic}


def load(*routes: dict[str, Any], **clusters: dict[str, Any]) -> Config:
    return from_dict({"clusters": CLUSTERS | clusters, "routes": list(routes)})


def problem(*routes: dict[str, Any], **clusters: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        load(*routes, **clusters)
    return str(raised.value)


def excluded(config: Config, topics: list[str], index: int = 0) -> list[str]:
    """Return the topics that the route with this index leaves out; the same in every order of the topics."""
    graph = TopicGraph.of(config)
    left_out = sorted(graph.judge(config.routes[index], topics).excluded)
    assert left_out == sorted(graph.judge(config.routes[index], topics[::-1]).excluded)
    return left_out


def test_a_route_must_not_name_its_own_dead_letters_as_a_source() -> None:
    assert problem(route("r", ["a/orders", "a/dead"], "b/{topic}", dead_letter="a/dead")) == (
        "routes[0].from.topics[1]: route 'r' would read its own dead-letter topic 'dead'. Choose another dead-letter topic, or "
        "read this one with a route of its own"
    )
    load(route("r", "a/orders", "b/{topic}", dead_letter="a/dead"), route("again", "a/dead", "a/orders", prevent_loops=False))


def test_a_route_must_not_name_its_own_copies_as_a_source() -> None:
    assert problem(route("r", ["a/orders", "a/orders-copy"], "a/{topic}-copy")) == (
        "routes[0].from.topics[1]: route 'r' would read the topic 'orders-copy', which it writes itself as a copy of 'orders'. "
        "Choose another target topic, or read the copy with a route of its own"
    )
    load(route("r", "a/orders", "a/{topic}-copy"), route("s", "a/orders-copy", "a/{topic}-copy"))  # a chain, on purpose


def test_a_topic_must_not_be_copied_to_itself_under_another_name() -> None:
    """Another name of its cluster, or another spelling of the topic."""
    twin = {"system": "log", "path": "./a.db"}
    assert "would copy the topic 'orders' to itself" in problem(route("r", "a/orders", "twin/{topic}"), twin=twin)
    first = {"system": "pulsar", "service_url": "pulsar://one:6650,two:6650"}
    second = {"system": "pulsar", "service_url": "pulsar://two:6650", "namespace": "shop/eu"}
    long = "persistent://public/default/orders"
    assert "to itself" in problem(route("r", "p/orders", f"q/{long}"), p=first, q=second)
    assert "to itself" in problem(route("r", "p/orders-partition-0", f"q/{long}"), p=first, q=second)
    load(route("r", "p/orders", "q/orders"), p=first, q=second)  # in another namespace
    rocketmq = {"system": "rocketmq", "name_servers": "localhost"}
    assert "to itself" in problem(route("r", "p/o", "q/o"), p=rocketmq, q=rocketmq | {"name_servers": "127.0.0.1:9876;other"})
    tubemq = {"system": "tubemq", "masters": "one,two"}
    assert "to itself" in problem(route("r", "p/o", "q/o"), p=tubemq, q=tubemq | {"masters": "two:8715"})


def test_a_longer_ring_needs_a_limit() -> None:
    ring = [route("1", "a/t", "b/t"), route("2", "b/t", "c/t"), route("3", "c/t", "a/t")]
    first, *_ = problem(*ring).splitlines()
    assert first == (
        "routes[0].from.topics[0]: the routes '1', '2', '3' form a loop: they would copy each message of the topic 't' again "
        "until it has passed 8 gateways. Set `delivery.max_hops: 2` of each of these routes, or remove one of them"
    )
    load(*(each | {"delivery": {"max_hops": 2}} for each in ring))
    load(*ring[:2], ring[2] | {"filter": {"include": [{"key": {"equals": "x"}}]}})  # which messages go round cannot be known
    load(*ring[:2])


def test_routes_in_both_directions_are_no_loop_unless_loops_are_not_prevented() -> None:
    load(route("there", "a/t", "b/u"), route("back", "b/u", "a/t"))
    there, back = (route(*ends, stamp_origin=False) for ends in (("there", "a/t", "b/u"), ("back", "b/u", "a/t")))
    assert "form a loop: they would copy each message of the topic 't' again without end" in problem(there, back)


def test_dead_letters_that_go_round_are_refused() -> None:
    routes = [route("r", "a/t", "b/t", dead_letter="c/d"), route("s", "c/d", "b/t", dead_letter="c/e")]
    load(*routes)
    found = problem(*routes, route("u", "c/e", "b/t", dead_letter="c/d"))
    assert "a dead letter that each of the routes 's', 'u' refuses would go from one to the next without end" in found


def test_patterns_do_not_select_dead_letters_of_their_own_route() -> None:
    config = load(
        route("r", "a/~orders_(.+)", "b/{topic}", dead_letter="a/orders_dead"),
        route("named", "a/orders_dead", "c/{topic}"),
        route("archive", "a/~.*", "c/{topic}"),
    )
    assert [excluded(config, ["orders_eu", "orders_dead"], index) for index in range(3)] == [["orders_dead"], [], []]
    graph = TopicGraph.of(config)
    assert graph.notes(config.routes[0]) == [
        "the topic a/orders_dead is not read, although a pattern matches it: it is the dead-letter topic of the route itself"
    ]
    assert graph.notes(config.routes[1]) == graph.notes(config.routes[2]) == []


def test_patterns_do_not_select_dead_letters_that_come_back_through_other_routes() -> None:
    """Two routes with one pattern would send each other's dead letters round; so would a route that reads another's copies."""
    config = load(
        route("r", "a/~.*", "b/{topic}", dead_letter="a/dead"),
        route("s", "a/~.*", "c/{topic}", dead_letter="a/lost"),
    )
    assert [excluded(config, ["orders", "dead", "lost"], index) for index in range(2)] == [["dead", "lost"]] * 2
    config = load(route("r", "a/~.*", "b/{topic}"), route("s", "b/~.*", "c/{topic}", dead_letter="a/dead"))
    assert excluded(config, ["orders", "dead"]) == ["dead"]


def test_a_route_that_sends_dead_letters_again_is_no_loop() -> None:
    again = route("again", "a/dead", "a/orders", stamp_origin=False)
    config = load(route("r", "a/~orders.*", "a/copy-of-{topic}", "a/{topic}2", dead_letter="a/dead"), again)
    judgement = TopicGraph.of(config).judge(config.routes[0], ["orders", "orders2", "orders-eu"])
    assert (judgement.excluded.keys(), judgement.refused) == ({"orders2"}, {})


@pytest.mark.parametrize("template", ["{topic}-copy", "copy-{topic}"])
def test_patterns_do_not_select_copies_of_their_own_route(template: str) -> None:
    config = load(route("r", "a/~.*", f"a/{template}"))
    first, second = template.format(topic="orders"), template.format(topic=template.format(topic="orders"))
    assert excluded(config, ["orders", "other", first, second]) == sorted([first, second])
    assert excluded(config, [first, "other"]) == [first]  # also when its source topic is deleted
    assert TopicGraph.of(config).notes(config.routes[0]) == [
        f"topics that the route itself writes (a/{template}) are not read, even if a pattern matches them"
    ]


def test_patterns_do_not_select_a_target_with_a_fixed_name() -> None:
    config = load(route("r", "a/~orders.*", "a/orders-all"))
    assert excluded(config, ["orders-eu", "orders-all"]) == ["orders-all"]


def test_copies_are_found_by_any_spelling() -> None:
    first = {"system": "pulsar", "service_url": "pulsar://one:6650"}
    second = first | {"namespace": "shop/eu"}
    config = load(route("r", "p/~.*", "q/persistent://public/default/copy-{topic}"), p=first, q=second)
    assert excluded(config, ["orders", "copy-orders", "shop/eu/copy-orders"]) == ["copy-orders"]


def test_copies_that_come_back_through_other_routes_are_not_selected() -> None:
    there, back = route("there", "a/~.*", "b/{topic}-x"), route("back", "b/~.*", "a/{topic}")
    config = load(there, back)
    assert excluded(config, ["orders", "orders-x"]) == ["orders-x"]
    assert excluded(config, ["orders-x"], 1) == []
    renaming = load(route("there", "a/~.*", "b/a.{topic}"), route("back", "b/~.*", "a/b.{topic}"))
    assert excluded(renaming, ["orders", "b.customers", "b.a.orders"]) == ["b.a.orders"]
    through_three = load(route("1", "a/~.*", "b/x{topic}"), route("2", "b/~.*", "c/{topic}"), route("3", "c/~.*", "a/{topic}"))
    assert excluded(through_three, ["orders", "xorders"]) == ["xorders"]


def test_patterns_in_both_directions_and_chains_of_patterns_stay_possible() -> None:
    mirrors = load(route("there", "a/~.*", "b/{topic}"), route("back", "b/~.*", "a/{topic}"))
    for index in range(2):
        assert excluded(mirrors, ["orders", "customers"], index) == []
        assert TopicGraph.of(mirrors).judge(mirrors.routes[index], ["orders"]).refused == {}
    chain = load(route("one", "a/~.*", "b/{topic}"), route("two", "b/~.*", "c/{topic}-x"), route("three", "c/~.*-x", "c/all"))
    assert [excluded(chain, ["orders", "orders-x"], index) for index in range(3)] == [[], [], []]


def test_copies_through_other_routes_that_add_no_topic_are_selected() -> None:
    """The topic may have producers of its own: leaving it out would lose their messages."""
    config = load(route("r", "a/~.*", "b/all"), route("s", "b/all", "a/orders"))
    assert excluded(config, ["orders", "customers"]) == []


def test_topics_that_are_copies_of_each_other_are_refused() -> None:
    config = load(route("r", "a/~(?P<x>.+)_(?P<y>.+)", "a/{y}_{x}"))
    judgement = TopicGraph.of(config).judge(config.routes[0], ["eu_orders", "orders_eu", "b_b"])
    assert {topic: refusal.problem for topic, refusal in judgement.refused.items()} == {
        "b_b": "route 'r' would copy the topic 'b_b' to itself",
        "eu_orders": "route 'r' would copy the topic 'eu_orders' to 'orders_eu', and that one to 'eu_orders'",
        "orders_eu": "route 'r' would copy the topic 'orders_eu' to 'eu_orders', and that one to 'orders_eu'",
    }


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{topic}-x", ["orders", "orders-x", "orders-x-x", "orders-x-x-x"]),
        ("a.{topic}", ["orders", "b.a.orders", "b.a.b.a.orders", "b.a.b.a.b.a.orders"]),
    ],
)
def test_names_that_grow_through_other_gateways_stop_growing(template: str, names: list[str]) -> None:
    """The other gateway's file is not known: a name that passed this route's template twice is not selected any more."""
    config = load(route("r", "a/~.*", f"b/{template}"))
    assert excluded(config, names) == sorted(names[2:])
    assert excluded(config, ["x-x", "a.a.b", "orders-x"]) == []
