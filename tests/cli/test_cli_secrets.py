"""No output shows a secret: commands, errors, tracebacks, the running gateway, and the configuration object."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mqbridge.config.load import load
from tests.cli.conftest import Invoke
from tests.kit.authority import Authority
from tests.kit.gateway import GatewayProcess
from tests.kit.process import free_ports

CANARY = "canary-7e3f"
"""Every secret of these tests contains this text."""


def clusters(folder: Path, form: str) -> dict[str, Any]:
    """Return one cluster of each system with all options for secrets; no server listens at their addresses.

    `form` is how the secrets are given: as text, by file, by command, or by substitution.
    """
    pulsar, admin, rocket, tube = free_ports(4)
    certificate = Authority(folder / "authority").issue("gateway", password=f"{CANARY}-key")

    def secret(name: str) -> Any:
        value = f"{CANARY}-{name}"
        (folder / name).write_text(value)
        sources = {
            "text": value,
            "file": {"file": str(folder / name)},
            "substituted": f"${{file:{folder / name}}}",
            "command": {"command": ["sh", "-c", f"echo complaint {value} >&2; cat {folder / name}"]},
        }
        return sources[form]

    tls = {
        "certificate": str(certificate.certificate),
        "key": str(certificate.key),
        "key_password": secret("key"),
        "verify": "none",
    }
    return {
        "pulsar": {
            "system": "pulsar",
            "service_url": f"pulsar+ssl://127.0.0.1:{pulsar}",
            "admin_url": f"https://admin:{CANARY}-basic@127.0.0.1:{admin}",
            "tls": tls,
            "auth": {"token": secret("token")},
        },
        "rocket": {
            "system": "rocketmq",
            "name_servers": f"127.0.0.1:{rocket}",
            "tls": tls,
            "auth": {"access_key": "somebody", "secret_key": secret("secret-key"), "security_token": secret("sts")},
        },
        "tube": {
            "system": "tubemq",
            "masters": f"127.0.0.1:{tube}",
            "admin_url": f"https://127.0.0.1:{admin}",
            "admin_token": secret("admin-token"),
            "tls": tls,
            "auth": {"user": "somebody", "password": secret("password")},
        },
    }


ROUTES = [
    {
        "name": f"{source}-{target}",
        "from": {"cluster": source, "topic": "t", "group": f"{source}-{target}"},
        "to": {"cluster": target, "topic": f"from_{source}"},
    }
    for source, target in (("pulsar", "rocket"), ("rocket", "tube"), ("tube", "pulsar"))
]


@pytest.fixture(params=["text", "command", *(pytest.param(form, marks=pytest.mark.thorough) for form in ("file", "substituted"))])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    (port,) = free_ports(1)
    http = {"listen": f"127.0.0.1:{port}"}
    path.write_text(
        yaml.safe_dump({"clusters": clusters(tmp_path, request.param), "routes": ROUTES, "http": http, "log": {"level": "debug"}})
    )
    return path


def output_of(*arguments: object) -> str:
    """Run a command that fails with an expected error; return all its output, including tracebacks."""
    command = [sys.executable, "-m", "mqbridge", "--debug", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode not in {0, 1}, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_commands_do_not_show_a_secret(file: Path) -> None:
    commands = [
        ["check", "--connect", file],
        ["check", "--connect", file, "-J"],
        *(["topics", "-F", file, "-b", cluster] for cluster in ("pulsar", "rocket", "tube")),
        ["peek", "t", "-F", file, "-b", "rocket"],
        ["run", file, "--fail-fast"],
    ]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda command: output_of(*command), commands))
    for command, output in zip(commands, outputs, strict=True):
        assert "cannot be reached" in output
        assert CANARY not in output, command


@pytest.mark.parametrize("file", ["text", "substituted"], indirect=True)
def test_errors_in_a_configuration_do_not_show_a_secret(file: Path, invoke: Invoke) -> None:
    valid = yaml.safe_load(file.read_text())
    for cluster, body in valid["clusters"].items():
        for group in ("auth", "tls"):
            for given in ({**body[group], "unknown": body[group]}, [body[group]], CANARY):
                wrong = {**valid["clusters"], cluster: {**body, group: given}}
                file.write_text(yaml.safe_dump({**valid, "clusters": wrong}))
                for command in (["check", file], ["check", file, "-J"]):
                    answer = invoke(*command)
                    assert answer.code == 2
                    assert CANARY not in answer.out + answer.err


def test_tracebacks_do_not_show_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        f"clusters: {{p: {{system: pulsar, service_url: 'pulsar://h', auth: {{token: [{CANARY}], user: {CANARY}}}}}}}"
    )
    output = output_of("check", file)
    assert "Traceback" in output
    assert CANARY not in output


@pytest.fixture
def gateway(file: Path, tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(file, tmp_path / "run") as process:
        yield process


def test_a_running_gateway_does_not_show_a_secret(file: Path, gateway: GatewayProcess) -> None:
    listen = yaml.safe_load(file.read_text())["http"]["listen"]
    outputs: dict[str, str] = {}
    deadline = time.monotonic() + 60
    while not outputs and time.monotonic() < deadline:
        try:
            for path in ("/metrics", "/routes", "/health", "/health/ready", "/health/live"):
                outputs[path] = httpx.get(f"http://{listen}{path}", timeout=30).text
        except httpx.TransportError:
            outputs.clear()
            time.sleep(0.05)
    outputs["/reload"] = httpx.post(f"http://{listen}/reload", timeout=60).text
    outputs["ps"] = Path(f"/proc/{gateway.process.pid}/cmdline").read_text()
    assert "cannot be reached" in outputs["/health/ready"]
    gateway.process.terminate()
    gateway.process.wait(60)
    outputs["log"] = gateway.log
    assert "cannot be reached" in outputs["log"]
    assert "tls.verify is `none`" in outputs["log"]
    assert [name for name, text in outputs.items() if CANARY in text] == []


def test_the_configuration_object_does_not_show_a_secret(file: Path) -> None:
    config = load(file)
    for name, cluster in config.clusters.items():
        shown = [
            repr(cluster),
            str(cluster),
            repr(cluster.settings.model_dump()),
            json.dumps(cluster.settings.model_dump(mode="json")),
        ]
        assert [text for text in shown if CANARY in text] == [], name


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        (f"pulsar+ssl://h:1?auth.token={CANARY}", "auth.token"),
        (f"pulsar://h:1?admin=http://u:{CANARY}@h", "admin_url"),
        (f"rocketmq://h:1?auth.access_key=a&auth.secret_key={CANARY}", "auth.secret_key"),
        (f"tubemq://h:1?admin=http://h&admin_token={CANARY}", "admin_token"),
        (f"tubemq://h:1?auth.user=u&auth.password={CANARY}", "auth.password"),
    ],
)
def test_a_secret_in_a_url_is_rejected(url: str, secret: str, invoke: Invoke) -> None:
    answer = invoke("topics", "--at", url)
    assert answer.code == 2
    assert f"contains the secret {secret}" in answer.err
    assert "use a profile in" in answer.err
    for wrong in (f"{url}&unknown=1", f"{url}{'&'}{url.partition('?')[2]}"):
        assert CANARY not in invoke("topics", "--at", wrong).err
    assert CANARY not in answer.err
