"""The `auth` options of a Pulsar cluster: valid and invalid options, and methods of plugins."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from pydantic import ValidationError

from mqbridge.net.secret import Secret
from mqbridge.pulsar.adapter import auth as auths
from mqbridge.pulsar.adapter.auth import ENTRY_POINT_GROUP, AuthOptions
from mqbridge.pulsar.adapter.config import PulsarCluster
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.connection.auth import Auth, BasicAuth, TlsAuth, TokenAuth

URL = "pulsar+ssl://broker"
CANARY = "canary-4711"


class Vault(Auth):
    """An authentication method of a plugin."""

    method = "token"

    def __init__(self, options: dict[str, Any]) -> None:
        if "role" not in options:
            raise ValueError("vault needs role")
        self.options = options


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("vault", f"{__name__}:Vault", ENTRY_POINT_GROUP)
    broken = EntryPoint("broken", "no_such_module:nothing", ENTRY_POINT_GROUP)
    monkeypatch.setattr(auths, "entry_points", lambda group: [entry, broken] if group == ENTRY_POINT_GROUP else [])


def cluster(**options: Any) -> PulsarCluster:
    return PulsarCluster.model_validate({"service_url": URL, **options})


def test_the_method_is_derived_from_token_or_password() -> None:
    made = cluster(auth={"token": "x"}).auth
    assert made is not None
    assert isinstance(made.make(None), TokenAuth)
    made = cluster(auth={"user": "a", "password": {"env": "B"}}).auth
    assert made is not None
    assert isinstance(made.make(None), BasicAuth)


def test_method_tls_uses_the_certificate_of_the_tls_options(tmp_path) -> None:
    config = cluster(tls={"certificate": str(tmp_path / "own.pem")}, auth={"method": "tls"})
    assert config.auth is not None
    assert isinstance(config.auth.make(config.certificate), TlsAuth)


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ({}, "the option method is missing: give one of token, basic, tls, broken, vault"),
        ({"method": "token"}, "method token needs token"),
        ({"method": "basic", "user": "a"}, "method basic needs password"),
        ({"token": "x", "pasword": "y"}, "method token has no option 'pasword'"),
        ({"method": "tls"}, "give tls.certificate"),
        ({"method": "valt"}, "method 'valt' is neither built in"),
        ({"method": "vault"}, "vault needs role"),
        ({"method": "broken"}, "the plugin of method 'broken' cannot be loaded"),
    ],
)
@pytest.mark.usefixtures("vault")
def test_contradicting_options_are_refused(auth: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        cluster(auth=auth)
    assert problem in str(caught.value)


@pytest.mark.usefixtures("vault")
def test_a_plugin_gets_the_options_besides_the_method() -> None:
    config = cluster(auth={"method": "vault", "role": "app", "password": CANARY, "path": ["a", "b"]})
    assert config.auth is not None
    made = config.auth.make(None)
    assert isinstance(made, Vault)
    assert made.options == {"role": "app", "password": Secret(CANARY), "path": ["a", "b"]}
    ADAPTER.make_cluster("c", config)


@pytest.mark.usefixtures("vault")
def test_plugin_options_are_never_shown() -> None:
    config = cluster(auth={"method": "vault", "role": "app", "client_secret": CANARY, "token": CANARY})
    for shown in (repr(config), str(config), config.model_dump_json(), str(config.model_dump())):
        assert CANARY not in shown
    wrong = {"method": "vault", "client_secret": CANARY}
    with pytest.raises(ValidationError) as caught:
        AuthOptions.model_validate(wrong)
    assert CANARY not in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        cluster(auth=wrong)
    assert CANARY not in str(caught.value)


def test_expiry_times_are_reported() -> None:
    made = ADAPTER.make_cluster("c", cluster(auth={"token": "opaque"}))
    assert made.expiries == {}


def test_tls_settings_must_match_the_scheme_of_the_url() -> None:
    assert cluster().make_tls("c") is not None
    assert PulsarCluster(service_url="pulsar://a").make_tls("c") is None
    assert PulsarCluster(service_url="pulsar://a", admin_url="https://a:8443").make_tls("c") is not None
    guessed = PulsarCluster.from_url("pulsar+ssl://a,[::1]:7?auth.token.file=/run/token&tls.authorities=/ca.pem")
    assert (guessed.admin_url, guessed.admin_is_guessed) == ("https://a:8443,https://[::1]:8443", True)
    assert guessed.auth is not None
    assert guessed.auth.token == Secret(file="/run/token")


@pytest.mark.parametrize(
    ("url", "admin", "auth", "warned"),
    [
        ("pulsar://h", None, {"token": CANARY}, True),
        ("pulsar+ssl://h", "http://h:8080", {"token": CANARY}, True),
        ("pulsar+ssl://h", "https://h:8443", {"token": CANARY}, False),
        ("pulsar+ssl://h", None, {"user": "u", "password": CANARY}, False),
        ("pulsar://h", None, None, False),
    ],
)
async def test_credentials_sent_without_tls_are_logged(
    url: str, admin: str | None, auth: dict[str, str] | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ADAPTER.make_cluster("p", PulsarCluster.model_validate({"service_url": url, "admin_url": admin, "auth": auth}))
    await cluster.close()
    assert ("without TLS, readable by anybody on the network path" in caplog.text) is warned
    assert CANARY not in caplog.text
