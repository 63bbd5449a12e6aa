import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from mqbridge.cli.app import app
from mqbridge.cli.process.logs import HANDLER_NAME
from mqbridge.testing.memory.broker import delete_broker


@dataclass(frozen=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


Invoke = Callable[..., Answer]


@pytest.fixture
def invoke() -> Iterator[Invoke]:
    """Return a function that runs a command in this process; an exception other than SystemExit fails the test."""
    root = logging.getLogger()
    level, gc_thresholds = root.level, gc.get_threshold()

    def run(*arguments: object, stdin: bytes = b"") -> Answer:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    yield run
    for handler in [handler for handler in root.handlers if handler.name == HANDLER_NAME]:
        root.removeHandler(handler)
    root.setLevel(level)
    gc.set_threshold(*gc_thresholds)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a configuration with a route between two embedded logs; return its path."""
    file = tmp_path / "f.yaml"
    file.write_text(f"""\
clusters:
  source: {{system: log, path: '{tmp_path}/source.db'}}
  target: {{system: log, path: '{tmp_path}/target.db', max_message_bytes: 1000}}
routes:
  - name: copy
    from: {{cluster: source, topic: orders, group: g}}
    to: {{cluster: target, topic: "{{topic}}-copy"}}
state: '{tmp_path}/state.db'
http: {{enabled: false}}
""")
    return file


@pytest.fixture(params=["log", "memory"])
def orders(request: pytest.FixtureRequest, tmp_path: Path, invoke: Invoke) -> Iterator[list[Any]]:
    """Return options that name a cluster, of each system in turn; it has a topic `orders` with three partitions."""
    file = tmp_path / "one.yaml"
    address = f"path: '{tmp_path}/orders.db'" if request.param == "log" else f"broker: '{tmp_path}'"
    file.write_text(f"clusters: {{only: {{system: {request.param}, {address}}}}}")
    options: list[Any] = ["-F", file]
    assert invoke("topics", "orders", "--create", 3, *options).code == 0
    yield options
    delete_broker(str(tmp_path))


def lines(data: str) -> list[Any]:
    """Parse JSON lines."""
    return [orjson.loads(line) for line in data.splitlines()]
