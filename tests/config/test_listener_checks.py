"""Options of listeners: their defaults, and that every mistake is reported with its line and a hint."""

from dataclasses import dataclass

import pytest

from mqbridge.config import listened_systems
from mqbridge.config.load import from_dict, parse
from mqbridge.config.options.config import Config
from mqbridge.config.options.listener import ListenerCreate, is_loopback
from mqbridge.config.problems import ConfigErrors
from mqbridge.config.schema import json_schema
from mqbridge.errors import ConfigError
from mqbridge.listener import server
from tests.config.fakes import ADAPTERS


@dataclass(frozen=True)
class _System:
    system: str
    port: int
    web_port: int | None
    default_topics: str
    groups_span_topics: bool = False
    numbers_messages: bool = True


SYSTEMS = {
    "pulsar": _System("pulsar", 6650, 8080, "persistent://public/default/{topic}"),
    "plain": _System("plain", 9000, None, "{topic}", groups_span_topics=True, numbers_messages=False),
}
GOOD = """\
clusters:
  a: {system: fake, masters: [x]}
  b: {system: fake, masters: [x]}
listeners:
  - name: app
    system: pulsar
    cluster: a
"""


def read(text: str, **environ: str) -> Config:
    return parse(text, "f.yaml", environ=environ, adapters=ADAPTERS, servers=SYSTEMS)


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        read(text, **environ)
    return [str(one) for one in caught.value.errors]


def test_a_configuration_with_a_listener_needs_no_routes() -> None:
    config = read(GOOD)
    (listener,) = config.listeners
    assert config.routes == ()
    assert (listener.listen, listener.web, listener.advertise, listener.topics, listener.group) == (None,) * 5
    assert (listener.groups, listener.manage, listener.open) == ("backing", False, False)
    assert listener.create == ListenerCreate(partitions=4)
    assert (listener.dead_letter_cluster, listener.clusters) == ("a", {"a"})
    limits = listener.limits
    assert (limits.connections, limits.unacknowledged_span) == (1000, 10_000)
    assert (limits.in_flight_bytes, limits.unacknowledged_bytes) == (64 << 20, 32 << 20)


def test_every_option_of_a_listener_can_be_set() -> None:
    config = read(
        GOOD
        + """\
    listen: 0.0.0.0:16650
    web: "[::]:18080"
    advertise: app-host:6650
    topics: "persistent://tenant/ns/{topic}"
    groups: own
    group: "{group}-{topic}"
    parking: waiting
    create: false
    manage: true
    open: "${OPEN}"
    sends: {deduplicate: true, dead_letter: {cluster: b, topic: dead}, spool: null}
    limits: {connections: 10, in_flight_bytes: 1MiB, unacknowledged_bytes: 1MiB, unacknowledged_span: 100}
state: s.db
""",
        OPEN="yes",
    )
    (listener,) = config.listeners
    assert listener.create is False
    assert listener.open
    assert (listener.sends.deduplicate, listener.sends.dead_letter.topic) == (True, "dead")
    assert listener.clusters == {"a", "b"}
    data = config.model_dump(mode="json", by_alias=True)
    data["clusters"] = {name: {"system": "fake", "masters": ["x"]} for name in ("a", "b")}
    assert from_dict(data, adapters=ADAPTERS, servers=SYSTEMS) == config


OPEN = (
    "and listeners do not authenticate: whoever connects may read and write all topics of the listener. Listen at 127.0.0.1, or "
    "set open: true (--open) if only trusted clients can reach the address"
)
OWN = (
    "`groups: own` needs the top-level option `state`: this gateway keeps the groups beside that file. "
    "Set state: FILE (--state), or write groups: backing"
)
SPOOL = "a spool is not supported yet. Leave it out: a send is answered when the cluster has stored its messages"
UNNUMBERED = (
    "sends.deduplicate: producers of plain do not number their messages, so one that is sent again cannot be recognized. "
    "Remove it: a message may be stored twice"
)
SPANNING = "group: a group of plain clients reads several topics, and is one group in the cluster. Write {group} without {topic}"
ONE = [
    ("limit: {}", "limit: there is no such key here. Did you mean 'limits'?"),
    ("limits: {connection: 1}", "limits.connection: there is no such key here. Did you mean 'connections'?"),
    ("limits: {connections: 0}", "limits.connections: Input should be greater than or equal to 1, not 0"),
    ("groups: owned", "groups: 'owned' is not one of 'backing' or 'own'. Did you mean 'own'?"),
    ("groups: own", f"groups: {OWN}"),
    ("listen: 0.0.0.0:6650", f"listen: other machines can reach 0.0.0.0, {OPEN}"),
    ("web: app-host:80", f"web: other machines can reach app-host, {OPEN}"),
    ("listen: 6650", "listen: must be a text, not 6650. Put quotes around it"),
    ("advertise: host:0", "advertise: clients cannot connect to port 0, as in 'host:0'. Write the port that they can reach"),
    ("topics: orders", "topics: the template 'orders' does not contain {topic} exactly once. Write {topic} once"),
    (
        "topics: '{topic}{topic}'",
        "topics: the template '{topic}{topic}' does not contain {topic} exactly once. Write {topic} once",
    ),
    ("topics: '{tenant}/{topic}'", "topics: the template uses {tenant}, which is not defined here. It may use {topic}"),
    ("group: '{topic}'", "group: the template '{topic}' does not contain {group} exactly once. Write {group} once"),
    ("group: '{group}-{a}'", "group: the template uses {a}, which is not defined here. It may use {group} and {topic}"),
    ("create: true", "create: must be false or a mapping, not True. Write create: {partitions: N}, or false"),
    ("create: {partition: 3}", "create.partition: there is no such key here. Did you mean 'partitions'?"),
    ("sends: {spool: /tmp/spool}", f"sends.spool: {SPOOL}"),
    ("sends: {dead_letter: {cluster: c}}", "sends.dead_letter.cluster: there is no cluster 'c'. Known: a, b"),
    ("web: 127.0.0.1:6650", "web: 127.0.0.1:6650 is already used by another listener (f.yaml:5). Choose another port"),
    ("listen: 127.0.0.1:8098", "listen: 127.0.0.1:8098 is already used by http.listen. Choose another port"),
]


@pytest.mark.parametrize(("line", "says"), ONE, ids=[line for line, _ in ONE])
def test_an_invalid_option_is_reported(line: str, says: str) -> None:
    assert f"f.yaml:8: listeners[0].{says}" in problems(f"{GOOD}    {line}\n")


CHANGED = [
    ("system: pulsar", "system: pulsr", "there is no listener for clients of the system 'pulsr'. Did you mean 'pulsar'?"),
    ("cluster: a", "cluster: c", "listeners[0].cluster: there is no cluster 'c'. Known: a, b"),
    ("    cluster: a\n", "", "listeners[0].cluster: is missing. The cluster that stores the messages"),
    ("system: pulsar", "system: plain\n    web: 127.0.0.1:1", "a listener for plain clients has no web address. Remove it"),
    ("system: pulsar", "system: plain\n    sends: {deduplicate: 'yes'}", f"f.yaml:7: listeners[0].{UNNUMBERED}"),
    ("system: pulsar", "system: plain\n    group: '{group}-{topic}'", f"f.yaml:7: listeners[0].{SPANNING}"),
]


@pytest.mark.parametrize(("old", "new", "says"), CHANGED, ids=[says for *_, says in CHANGED])
def test_a_changed_listener_is_reported(old: str, new: str, says: str) -> None:
    (found,) = problems(GOOD.replace(old, new, 1))
    assert found.endswith(says)


def test_listeners_with_one_name_and_one_address_are_reported() -> None:
    second = "  - {name: app, system: pulsar, cluster: b, listen: '0.0.0.0:6650', open: true}\n"
    assert problems(GOOD + second) == [
        "f.yaml:8: listeners[1].name: the listener name 'app' is already used (f.yaml:5). Choose another name",
        "f.yaml:8: listeners[1].listen: 0.0.0.0:6650 is already used by another listener (f.yaml:5). Choose another port",
    ]


def test_free_ports_and_an_http_server_that_is_off_take_no_address() -> None:
    more = (
        "  - {name: b, system: pulsar, cluster: b, listen: '127.0.0.1:0', web: '127.0.0.1:0'}\nhttp: {listen: '127.0.0.1:6650'}"
    )
    assert problems(GOOD + more) == [
        "f.yaml:5: listeners[0].listen: 127.0.0.1:6650 is already used by http.listen. Choose another port"
    ]
    assert len(read(GOOD + more.replace("{listen: '127.0.0.1:6650'}", "{enabled: false}")).listeners) == 2


def test_a_variable_can_not_open_a_listener_by_chance() -> None:
    text = f"{GOOD}    listen: 0.0.0.0:1\n    open: ${{OPEN:-false}}\n"
    assert "other machines can reach" in problems(text)[0]
    assert read(text, OPEN="true").listeners[0].open


def test_a_dead_letter_topic_that_its_system_refuses_is_reported() -> None:
    text = GOOD.replace("{system: fake, masters: [x]}", "{system: tubemq, masters: 'h:1'}", 1)
    with pytest.raises(ConfigError, match=r"listeners\[0\]\.sends\.dead_letter\.topic"):
        parse(
            f"{text}    sends: {{dead_letter: {{topic: 'a-b'}}}}\n".replace("  b: {system: fake, masters: [x]}\n", ""),
            "f.yaml",
            servers=SYSTEMS,
        )


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("LOCALHOST", True), ("0.0.0.0", False), ("h", False)],
)
def test_loopback_addresses_are_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_schema_has_the_listeners() -> None:
    schema = json_schema(ADAPTERS)
    assert schema["properties"]["listeners"]["items"] == {"$ref": "#/$defs/ListenerConfig"}
    listener = schema["$defs"]["ListenerConfig"]
    assert listener["required"] == ["name", "system", "cluster"]
    assert set(listener["properties"]) == {
        *("name", "system", "listen", "web", "advertise", "cluster", "topics", "groups", "group", "parking", "create"),
        *("manage", "open", "sends", "limits"),
    }
    assert schema["$defs"]["ListenerLimits"]["properties"]["in_flight_bytes"]["default"] == "64MiB"


def test_configuration_and_listeners_find_servers_in_the_same_place() -> None:
    assert listened_systems.ENTRY_POINT_GROUP == server.ENTRY_POINT_GROUP
    assert set(listened_systems.load_listened_systems()) == set(server.load_servers())
