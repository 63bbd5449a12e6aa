"""Problems of option groups with secrets do not show the given values."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import Field

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.base import Options
from mqbridge.config.load import parse
from mqbridge.config.problems import ConfigErrors
from mqbridge.config.tls import TlsChoice
from mqbridge.net.secret import Secret
from tests.config.fakes import ADAPTERS

CANARY = "canary-b0b1"


class Auth(Options):
    user: str = Field(description="Who.")
    password: Secret = Field(description="Proof.")


class LockedCluster(ClusterModel):
    address: str
    port: int = 1
    auth: Auth | None = None
    tls: TlsChoice = None
    admin_token: Secret | None = None


def problems(body: str) -> list[str]:
    locked = replace(ADAPTERS["fake"], system="locked", cluster_model=LockedCluster)
    with pytest.raises(ConfigErrors) as raised:
        parse(f"clusters:\n  a: {{system: locked, address: x, {body}}}\n", "f.yaml", adapters={"locked": locked})
    return [str(one) for one in raised.value.errors]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"auth: {CANARY}", "auth: must be a mapping, not the current value. Its keys are password, user"),
        (f"auth: {{user: x, password: {{fil: {CANARY}}}}}", "auth.password: must be a text, or one of {file: PATH}"),
        (f"auth: {{user: x, password: [{CANARY}]}}", "auth.password: must be a text, or one of {file: PATH}"),
        (f"auth: {{user: x, passwort: {CANARY}}}", "auth.passwort: there is no such key here. Did you mean 'password'?"),
        (f"admin_token: {{file: {{x: {CANARY}}}}}", "admin_token: file must be a text"),
        (f"tls: {CANARY}", "tls: must be a mapping, not the current value"),
        (f"tls: {{certificate: a, key_password: [{CANARY}]}}", "tls.key_password: must be a text"),
        (f"tls: {{key_password: {CANARY}}}", "tls: key and key_password require a certificate: give tls.certificate"),
    ],
)
def test_possible_secrets_are_not_shown(body: str, expected: str) -> None:
    found = problems(body)
    assert any(expected in one for one in found), found
    assert CANARY not in "".join(found)


@pytest.mark.parametrize(
    ("body", "expected"),
    [("port: abc", "not 'abc'"), ("tls: {verify: ful}", "'ful' is not one of"), ("tls: {verify: 3}", "3 is not one")],
)
def test_other_values_are_shown(body: str, expected: str) -> None:
    assert any(expected in one for one in problems(body)), problems(body)


def test_a_valid_secret_is_read() -> None:
    read: Any = LockedCluster.model_validate({"address": "x", "tls": True, "auth": {"user": "u", "password": {"env": "E"}}})
    assert (read.tls.verify, read.auth.password) == ("full", Secret(env="E"))
