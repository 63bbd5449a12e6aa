"""`--at NAME` names a cluster in the user's own configuration; passwords in URLs are rejected and not shown."""

from pathlib import Path

import pytest

from mqbridge.cli.options.completion import profiles as completed_profiles
from mqbridge.config.cluster_choice import redact_url
from mqbridge.config.profiles import profiles_file
from tests.cli.conftest import Invoke

CANARY = "canary-91c2"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MQBRIDGE_PROFILES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "mqbridge" / "clusters.yaml"
    file.parent.mkdir()
    file.write_text(
        f"clusters:\n  lab: {{system: log, path: {tmp_path}/lab.db}}\n  prod: {{system: log, path: {tmp_path}/prod.db}}\n"
    )
    return file


def test_a_profile_is_a_cluster(profiles: Path, invoke: Invoke) -> None:
    assert invoke("topics", "orders", "--create", 2, "--at", "prod").code == 0
    assert "orders" in invoke("topics", "--at", "prod").out
    assert "orders" not in invoke("topics", "--at", "lab").out


def test_a_missing_profile_is_reported_with_the_nearest_name(profiles: Path, invoke: Invoke) -> None:
    answer = invoke("topics", "--at", "prd")
    assert answer.code == 2
    assert f"'prd' is neither a URL nor a cluster of {profiles}. Did you mean 'prod'?" in answer.err
    profiles.unlink()
    answer = invoke("topics", "--at", "prod")
    assert answer.code == 2
    assert f"define the cluster under this name in {profiles}" in answer.err


def test_an_error_in_the_file_has_its_line(profiles: Path, invoke: Invoke) -> None:
    profiles.write_text("clusters:\n  prod: {system: log, paht: x}\n")
    answer = invoke("topics", "--at", "prod")
    assert answer.code == 2
    assert f"{profiles}:2: clusters.prod.paht: there is no such key here. Did you mean 'path'?" in answer.err


def test_the_shell_completes_profiles(profiles: Path) -> None:
    assert completed_profiles("p") == ["prod", "pulsar://"]
    profiles.write_text("{")
    assert completed_profiles("pr") == []


def test_an_environment_variable_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQBRIDGE_PROFILES", str(tmp_path / "mine.yaml"))
    assert profiles_file() == tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("pulsar://a:1,b:2", "pulsar://a:1,b:2"),
        (f"pulsar://me:{CANARY}@a:1?auth.token={CANARY}&x=1", "pulsar://a:1?auth.token=…&x=…"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        f"pulsar://me:{CANARY}@a:99999",
        f"pulsar://me:{CANARY},x@a:1",
        f"pulsar://{CANARY}@a:1",
        f"rocketmq://me:{CANARY}@a:1",
        f"tubemq://me:{CANARY}@a:1",
        f"tubemq://{CANARY}@a:1",
        f"pulsar://a:1?admin=http://me:{CANARY}@a:2",
    ],
)
def test_a_password_in_an_address_is_rejected_and_not_shown(url: str, invoke: Invoke) -> None:
    answer = invoke("topics", "--at", url)
    assert answer.code == 2
    assert CANARY not in answer.out + answer.err
    assert ".file" not in answer.err  # the hint must not propose NAME.file=PATH: an address cannot have a source
