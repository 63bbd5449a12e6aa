"""URLs of clusters."""

import pytest

from mqbridge.errors import ConfigError
from mqbridge.library.cluster_url import parse_cluster_url
from mqbridge.net.tls.tls import Tls


def test_several_addresses_and_the_default_port() -> None:
    found = parse_cluster_url("pulsar://one, two:7,[::1]:8/", "pulsar", 6650)
    assert found == ([("one", 6650), ("two", 7), ("::1", 8)], None)


def test_the_scheme_chooses_tls_and_its_port() -> None:
    tls = Tls()
    assert parse_cluster_url("pulsar+ssl://one", "pulsar", 6650, tls, 6651) == ([("one", 6651)], tls)
    assert parse_cluster_url("tubemq+ssl://one", "tubemq", 8715).addresses == [("one", 8715)]
    assert parse_cluster_url("tubemq+ssl://one", "tubemq", 8715).tls is not None


@pytest.mark.parametrize(
    ("url", "tls", "problem"),
    [
        ("kafka://one", None, r"'kafka://': write pulsar://host:6650 or pulsar\+ssl://host:6651"),
        ("one:6650", None, r"'one:6650': write pulsar://"),
        ("pulsar://", None, "has no address: write pulsar://host:6650"),
        ("pulsar+ssl://,", None, r"write pulsar\+ssl://host:6651"),
        ("pulsar://one:x", None, "the pulsar:// URL"),
        ("pulsar://me:secret@one", None, "must not contain a user or a password"),
        ("me:secret@one", None, r"'one': write pulsar://"),
        ("pulsar://one", Tls(), r"write pulsar\+ssl://"),
    ],
)
def test_an_invalid_url_is_refused(url: str, tls: Tls | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        parse_cluster_url(url, "pulsar", 6650, tls, 6651)
    assert "secret" not in str(refused.value)
