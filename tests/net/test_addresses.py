"""The map of advertised to reachable addresses: what it accepts, and what it answers."""

import logging
import pickle

import pytest

from mqbridge import PulsarClient, RocketMQClient, TubeMQClient
from mqbridge.config.load import parse
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ConfigError
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.pulsar.adapter.config import PulsarCluster
from mqbridge.rocketmq.adapter.config import RocketMQCluster
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.tubemq.adapter.config import TubeMQCluster

MAP = AddressMap(
    {
        "broker-1:6650": "localhost:16650",
        "Broker-1": "10.0.0.1",
        "[fd00::7]:8123": "[::1]:18123",
        "10.1.0.5": "nat.example.com",
        "localhost:16650": "elsewhere:1",
    }
)


@pytest.mark.parametrize(
    ("advertised", "reachable"),
    [
        (("broker-1", 6650), ("localhost", 16650)),
        (("BROKER-1", 6650), ("localhost", 16650)),
        (("broker-1", 8080), ("10.0.0.1", 8080)),
        (("fd00::7", 8123), ("::1", 18123)),
        (("10.1.0.5", 10911), ("nat.example.com", 10911)),
        (("broker-2", 6650), ("broker-2", 6650)),
    ],
)
def test_an_entry_with_a_port_takes_precedence_and_is_applied_once(
    advertised: tuple[str, int], reachable: tuple[str, int]
) -> None:
    assert MAP.reachable(*advertised) == reachable
    assert DIRECT.reachable(*advertised) == advertised


def test_the_map_is_a_value() -> None:
    again = pickle.loads(pickle.dumps(MAP))
    assert again == MAP
    assert hash(again) == hash(MAP)
    assert again.entries == MAP.entries
    assert MAP != DIRECT
    assert not DIRECT


def test_entries_that_were_not_needed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    used = AddressMap({"a:1": "b:2", "c": "d"})
    used.reachable("A", 1)
    with caplog.at_level(logging.INFO):
        used.log_unused("events")
        assert "cluster events: these entries of `addresses` were not needed, no server had their names: c" in caplog.messages
        caplog.clear()
        used.reachable("c", 5)
        used.log_unused("events")
    assert caplog.messages == []


# --- configuration ------------------------------------------------------------------------------------------------------------

FILE = """\
clusters:
  a:
    system: {system}
    addresses:
      broker-1:6650: localhost:16650
      {entry}
routes: []
"""
SYSTEMS = {"pulsar": "service_url: pulsar://a", "rocketmq": "name_servers: a", "tubemq": "masters: a"}
WRONG = [
    ("broker-2:6650: localhost", "'broker-2:6650' and 'localhost': give a port on both sides, or on neither"),
    ("broker-2: localhost:6650", "'broker-2' and 'localhost:6650': give a port on both sides, or on neither"),
    ("broker-2:99999: b:1", "'broker-2:99999' is not host:port, with a port from 1 to 65535"),
    ("broker-2:1: b:port", "'b:port' is not host:port, with a port from 1 to 65535"),
    ("'broker-2:': b", "'broker-2:' has no port after its colon"),
    ("'pulsar://broker-2:1': b:1", "'pulsar://broker-2:1' is not host:port or host: leave out the scheme and the path"),
    ("'::1': b", "is not host:port"),
    ("BROKER-1:6650: b:1", "'BROKER-1:6650' is there twice, in another spelling"),
    ("broker-2: 5", "must be a text, host:port or host, not 5"),
    ("me:canary@broker-2:1: b:1", "an address must not contain a user or a password"),
]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(("entry", "problem"), WRONG)
def test_a_wrong_entry_is_reported_with_its_line(system: str, entry: str, problem: str) -> None:
    text = FILE.format(system=f"{system}\n    {SYSTEMS[system]}", entry=entry)
    with pytest.raises(ConfigErrors) as caught:
        parse(text, "f.yaml", environ={})
    (error,) = [error for error in caught.value.errors if "addresses" in error.path]
    assert error.location == "f.yaml:7"
    assert problem in str(error)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_misspelt_option_gets_the_nearest_name(system: str) -> None:
    text = f"clusters:\n  a:\n    system: {system}\n    {SYSTEMS[system]}\n    adresses: {{}}\nroutes: []\n"
    with pytest.raises(ConfigErrors, match=r"f\.yaml:5: clusters\.a\.adresses: .*Did you mean 'addresses'\?"):
        parse(text, "f.yaml", environ={})


URLS = [
    (PulsarCluster, "pulsar://a:6650"),
    (RocketMQCluster, "rocketmq://a:9876"),
    (TubeMQCluster, "tubemq://a:8715"),
]


@pytest.mark.parametrize(("model", "url"), URLS)
def test_a_url_has_the_map_as_text(model: type[PulsarCluster], url: str) -> None:
    """URLs are also what Spark takes, which sends the options to its processes, and compares them."""
    made = model.from_url(f"{url}?addresses=broker-1.svc:6650=localhost:16650,broker-2=10.0.0.2")
    assert made.addresses == AddressMap({"broker-1.svc:6650": "localhost:16650", "broker-2": "10.0.0.2"})
    assert made.model_dump()["addresses"] == {"broker-1.svc:6650": "localhost:16650", "broker-2": "10.0.0.2"}
    assert model.model_validate_json(made.model_dump_json()).addresses == made.addresses
    reference = ClusterRef("a", "system", made)
    assert pickle.loads(pickle.dumps(reference)) == reference
    assert hash(reference) == hash(ClusterRef("a", "system", model.from_url(made_url(url))))
    for wrong in ("broker-1", "a=b,a=c", "a:1=b"):
        with pytest.raises(ValueError, match=r"is not ADVERTISED=REACHABLE|is there twice|a port on both sides"):
            model.from_url(f"{url}?addresses={wrong}")


def made_url(url: str) -> str:
    return f"{url}?addresses=broker-2=10.0.0.2,broker-1.svc:6650=localhost:16650"


@pytest.mark.parametrize(
    "make",
    [
        lambda entries: PulsarClient("pulsar://a", addresses=entries),
        lambda entries: RocketMQClient("rocketmq://a", addresses=entries),
        lambda entries: TubeMQClient("tubemq://a", addresses=entries),
    ],
)
def test_a_client_of_the_library_names_the_wrong_entry(make: object) -> None:
    assert callable(make)
    make({"a:1": "b:2"})
    with pytest.raises(ConfigError, match=r"addresses\['a:1'\] cannot be used: 'a:1' and 'b': give a port on both sides"):
        make({"c:1": "d:1", "a:1": "b"})
