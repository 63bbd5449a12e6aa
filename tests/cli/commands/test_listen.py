"""`mqbridge listen` as a process: what it prints, how it is stopped, and what it refuses."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mqbridge.config.options.config import Config
from mqbridge.gateway import run
from mqbridge.listener.server import load_servers
from tests.cli.conftest import Invoke
from tests.kit.line_server import SERVERS, LineClient
from tests.patience import SERVER_PATIENCE_S

PROGRAM = """
import sys
from mqbridge.config import load
from mqbridge.gateway import run
from mqbridge.listener.server import load_servers
from tests.kit.line_server import SERVERS
load.load_listened_systems = lambda: SERVERS
run.load_servers = lambda: SERVERS
from mqbridge.cli.main import main
sys.argv[0] = "mqbridge"
main()
"""


@pytest.fixture(autouse=True)
def lines_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.config.load.load_listened_systems", lambda: SERVERS)
    monkeypatch.setattr("mqbridge.gateway.run.load_servers", lambda: SERVERS)
    monkeypatch.setattr("mqbridge.gateway.listeners.load_servers", lambda: SERVERS)
    monkeypatch.setattr("mqbridge.gateway.listener_check.load_servers", lambda: SERVERS)


async def test_it_says_where_clients_connect_and_drains_at_a_signal(tmp_path: Path) -> None:
    arguments = ["listen", "lines", "--at", f"log://{tmp_path}/log.db", "--listen", "127.0.0.1:0", "--create-partitions", "2"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *arguments), stderr=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while not lines or (lines[-1] and "can connect" not in lines[-1]):
                lines.append((await process.stderr.readline()).decode().strip())
            address = lines[-1].rpartition(" ")[2]
            assert lines[-1] == f"clients of lines can connect: address {address}"
            client = await LineClient.connect(address)
            assert await client.ask("hello") == "welcome"
            assert await client.ask("topic lines/orders") == "orders 2"
            process.send_signal(signal.SIGTERM)
            assert await client.line() == "bye"
            await client.close()
            rest = (await process.stderr.read()).decode()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "listener lines: 0 messages received, 0 delivered, 0 of them again, 0 dead letters" in rest
    assert any("metrics and health: http://127.0.0.1:" in line for line in lines)
    assert any(f"listener lines serves lines clients at {address} from cluster" in line for line in lines)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Return the configurations that are run; none is really run."""
    seen: list[Config] = []

    def serve(config: Config, *_: object, **__: object) -> run.RunResult:
        seen.append(config)
        return run.RunResult([], 0.0)

    monkeypatch.setattr("mqbridge.cli.running.gateway.serve", serve)
    return seen


def test_its_options_are_those_of_a_listener(invoke: Invoke, configured: list[Config], tmp_path: Path) -> None:
    answer = invoke(
        *(
            "listen",
            "lines",
            "--at",
            f"log://{tmp_path}/log.db",
            "--name",
            "app",
            "--listen",
            "0.0.0.0:1",
            "--web",
            "127.0.0.1:2",
        ),
        *(
            "--advertise",
            "host:3",
            "--groups",
            "own",
            "--state",
            tmp_path / "s.db",
            "--create-partitions",
            0,
            "--open",
            "--manage",
        ),
    )
    assert (answer.code, answer.err) == (0, "")
    (config,) = configured
    (one,) = config.listeners
    assert (one.name, one.listen, one.web, one.advertise) == ("app", "0.0.0.0:1", "127.0.0.1:2", "host:3")
    assert (one.groups, one.create, one.open, one.manage) == ("own", False, True, True)
    assert list(config.clusters) == [one.cluster]
    assert (config.routes, config.state, config.http.port) == ((), tmp_path / "s.db", 0)


def test_a_profile_is_a_cluster(
    invoke: Invoke, configured: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clusters.yaml").write_text(f"clusters: {{mine: {{system: log, path: '{tmp_path}/log.db'}}}}")
    monkeypatch.setenv("MQBRIDGE_PROFILES", str(tmp_path / "clusters.yaml"))
    assert invoke("listen", "lines", "--at", "mine").code == 0
    assert configured[0].listeners[0].cluster == "mine"
    assert configured[0].listeners[0].name == "lines"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--groups", "own"], "needs the top-level option `state`"),
        (["--listen", "0.0.0.0:1"], "set open: true (--open)"),
        (["--listen", "nowhere"], "is not an address: write HOST:PORT"),
    ],
)
def test_mistakes_are_reported(options: list[str], says: str, invoke: Invoke, configured: list[Config], tmp_path: Path) -> None:
    answer = invoke("listen", "lines", "--at", f"log://{tmp_path}/log.db", *options)
    assert answer.code == 2
    assert says in answer.err
    assert configured == []


def test_an_unknown_system_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    answer = invoke("listen", "line", "--at", f"log://{tmp_path}/log.db")
    assert answer.code == 2
    assert "there is no listener for clients of the system 'line'. Did you mean 'lines'?" in answer.err


def test_a_port_that_is_in_use_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = invoke("listen", "lines", "--at", f"log://{tmp_path}/log.db", "--listen", address)
    assert answer.code == 2
    assert f"listeners.lines.listen: cannot listen on {address}: Address already in use" in answer.err


# --- mqbridge check -----------------------------------------------------------------------------------------------------


@pytest.fixture
def with_listener(tmp_path: Path) -> Path:
    file = tmp_path / "listener.yaml"
    file.write_text(f"""\
clusters: {{log: {{system: log, path: '{tmp_path}/log.db'}}}}
listeners: [{{name: app, system: lines, cluster: log, listen: '127.0.0.1:0'}}]
""")
    return file


def test_check_lists_listeners(invoke: Invoke, with_listener: Path) -> None:
    answer = invoke("check", with_listener)
    assert answer.code == 0
    assert answer.out.split() == ["listener", "system", "listen", "cluster", "app", "lines", "127.0.0.1:0", "log"]
    assert "no problems (1 cluster, 0 routes, 1 listener)" in answer.err
    (one,) = invoke("check", with_listener, "--json").json["listeners"]
    assert (one["name"], one["error"], one["notes"]) == ("app", None, [])


def test_check_with_connect_says_what_would_be_refused(invoke: Invoke, with_listener: Path) -> None:
    answer = invoke("check", with_listener, "--connect")
    assert answer.code == 0
    assert "can start" in answer.out
    assert "listener app: clients see 0 topics" in answer.err
    (one,) = invoke("check", with_listener, "--connect", "--json").json["listeners"]
    assert one["notes"]
    assert one["warnings"] == []
    with_listener.write_text(
        with_listener.read_text().replace("127.0.0.1:0", "0.0.0.0:0").replace("cluster: log", "cluster: log, open: true")
    )
    assert invoke("check", with_listener, "--connect", "--strict").code == 3


@pytest.mark.parametrize(
    "cluster", ["system: pulsar, service_url: 'pulsar://127.0.0.1:1'", "system: tubemq, masters: '127.0.0.1:1'"]
)
def test_check_refuses_a_cluster_whose_numbers_are_not_dense(
    cluster: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbridge.config.load.load_listened_systems", load_servers)
    monkeypatch.setattr("mqbridge.gateway.listeners.load_servers", load_servers)
    file = tmp_path / "listener.yaml"
    for system, code in (("rocketmq", 2), ("pulsar", 0)):
        file.write_text(f"clusters: {{c: {{{cluster}}}}}\nlisteners: [{{name: app, system: {system}, cluster: c}}]\n")
        answer = invoke("check", file)
        assert (answer.code, "listeners.app.cluster: clients of rocketmq number" in answer.err) == (code, code == 2)
    file.write_text(file.read_text().replace("system: pulsar, cluster", "system: rocketmq, cluster"))
    answer = invoke("check", file, "--connect", "--json")
    assert (answer.code, [one["path"] for one in answer.json["problems"]]) == (2, ["listeners.app.cluster"])
