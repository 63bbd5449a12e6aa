"""A third-party adapter has no disadvantage: the example package is installed, passes the suite, and works with every command.

Nothing is fetched: pip builds it with the setuptools of this environment (pip-tools depends on it), without its dependencies.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import SERVER_PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "adapter"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder, as into an environment."""
    source, target = tmp_path_factory.mktemp("source") / "adapter", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)  # a build leaves its own folders behind
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", target, source],
        check=True,
        timeout=SERVER_PATIENCE_S,
        cwd=source.parent,
    )
    return target


def run(installed: Path, *arguments: object, stdin: str = "", **environ: str) -> str:
    """Run a Python module that can import the package; return its standard output."""
    path = os.pathsep.join([str(installed), str(ROOT), environ.pop("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        check=False,
        input=stdin,
        text=True,
        capture_output=True,
        timeout=SERVER_PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, **environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_adapter_passes_the_conformance_suite(installed: Path) -> None:
    out = run(
        installed,
        *("pytest", "-q", "-p", "no:cacheprovider", "tests/conformance"),
        MQBRIDGE_CONFORMANCE="files_harness:FilesHarness",
        PYTHONPATH=str(EXAMPLE / "tests"),
    )
    passed = re.search(r"(\d+) passed", out)
    assert passed is not None
    assert int(passed[1]) >= 30, out


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a configuration with routes from an embedded log into the folder and back into another topic of the log."""
    file = tmp_path / "gateway.yaml"
    file.write_text(f"""\
clusters:
  log: {{system: log, path: '{tmp_path}/log.db'}}
  files: {{system: files, path: '{tmp_path}/topics'}}
routes:
  - name: there
    from: {{cluster: log, topic: orders, group: there}}
    to: {{cluster: files, topic: copy}}
  - name: back
    from: {{cluster: files, topic: copy, group: back}}
    to: {{cluster: log, topic: returned}}
state: '{tmp_path}/state.db'
http: {{enabled: false}}
""")
    return file


def test_every_command_works_with_the_example_adapter(installed: Path, config: Path, tmp_path: Path) -> None:
    log, files = ["-F", config, "-b", "log"], ["-F", config, "-b", "files"]

    def mqbridge(*arguments: object, stdin: str = "") -> str:
        return run(installed, "mqbridge", *arguments, stdin=stdin)

    assert "files/copy" in mqbridge("check", config)
    for topic, options in (("orders", log), ("returned", log), ("copy", files)):
        mqbridge("topics", topic, "--create", 2, *options)
    form = ["-K", ":", "-H", "lang=多", "-T", "paid", "--event-time", "@1700000000123"]
    mqbridge("produce", "-t", "orders", *form, *log, stdin="".join(f"key-{number % 5}:{number}\n" for number in range(1000)))
    routes = {one["name"]: one for one in json.loads(mqbridge("run", config, "--until-idle", 1, "--json"))["routes"]}
    assert {name: route["acknowledged"] for name, route in routes.items()} == {"there": 1000, "back": 1000}

    consumed = [json.loads(line) for line in mqbridge("consume", "-t", "returned", "-e", "--json", *log).splitlines()]
    assert sorted(int(one["payload"]) for one in consumed) == list(range(1000))
    for key in {one["key"] for one in consumed}:
        numbers = [int(one["payload"]) for one in consumed if one["key"] == key]
        assert numbers == sorted(numbers), "messages of one key changed their order"
    assert {(tuple(map(tuple, one["properties"])), one["msg_type"], one["event_time"]) for one in consumed} == {
        ((("lang", "多"),), "paid", 1_700_000_000_123)
    }

    (described,) = json.loads(mqbridge("topics", "copy", "--json", *files))
    assert sum(partition["messages"] for partition in described["partitions"]) == 1000
    peeked = [json.loads(line) for line in mqbridge("peek", "copy", "--first", "-c", 3, "--json", *files).splitlines()]
    assert [one["msg_type"] for one in peeked] == ["paid"] * 3
    url = f"files://{tmp_path}/topics"
    assert len(mqbridge("consume", "-t", "copy", "-G", "audit", "-e", "--at", url).splitlines()) == 1000
    assert mqbridge("consume", "-t", "copy", "-G", "audit", "-e", "--at", url) == ""

    fields = json.loads(mqbridge("explain", "files", "pulsar", "--json"))["fields"]
    assert {"payload", "properties", "attributes"} <= {row["source"] for row in fields}
    written = json.loads(mqbridge("explain", "--message", url, "copy", "rocketmq", "--json"))["written"]
    assert {row["native"]: row["value"] for row in written}["TAGS"] == "paid"
    into = json.loads(mqbridge("explain", *log, "orders", "files", "--json"))["written"]
    assert {row["native"]: row["value"] for row in into}["property lang"] == "多"
