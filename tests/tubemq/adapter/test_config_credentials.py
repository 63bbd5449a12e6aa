"""TLS and credentials in configurations and URLs."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.config import TubeMQCluster
from mqbridge.tubemq.wire.string_formats import DEFAULT_BROKER_TLS_PORT, parse_broker, parse_subscription


def test_the_default_port_with_tls_is_the_tls_port() -> None:
    assert TubeMQCluster(masters=("a", "b:1")).master_addresses == [("a", 8715), ("b", 1)]
    assert TubeMQCluster.model_validate({"masters": "a,b:1", "tls": True}).master_addresses == [("a", 8716), ("b", 1)]
    assert parse_broker("1:10.0.0.5: ", DEFAULT_BROKER_TLS_PORT).port == 8124
    assert parse_subscription("c@g#1:10.0.0.5: #demo:0", DEFAULT_BROKER_TLS_PORT).broker.port == 8124
    assert parse_broker("1:10.0.0.5: ").port == 8123


def test_a_url_over_tls() -> None:
    found = TubeMQCluster.from_url(
        "tubemq+ssl://a,b:1?tls.authorities=ca.pem&auth.user=app&auth.password.file=pw&admin=https://c"
    )
    assert found.master_addresses == [("a", 8716), ("b", 1)]
    assert found.tls is not None
    assert (found.tls.authorities, found.admin_url) == (Path("ca.pem"), "https://c")
    assert found.auth is not None
    assert (found.auth.user, found.auth.password.source) == ("app", "file pw")
    assert TubeMQCluster.from_url("tubemq+ssl://a").tls is not None
    assert TubeMQCluster.from_url("tubemq://a").tls is None


@pytest.mark.parametrize("auth", [{"user": "app"}, {"password": "x"}, {"user": "two words", "password": "x"}])
def test_user_and_password_are_both_required(auth: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="auth"):
        TubeMQCluster.model_validate({"masters": "a", "auth": auth})


def test_no_secret_is_printed() -> None:
    auth = {"user": "app", "password": "hidden-1"}
    found = TubeMQCluster.model_validate({"masters": "a", "auth": auth, "admin_url": "http://b", "admin_token": "hidden-2"})
    cluster = TubeMQ("c", found)
    shown = f"{found!r} {found} {found.model_dump()} {found.model_dump_json()} {vars(cluster)} {vars(cluster._credentials)}"
    assert "hidden" not in shown
