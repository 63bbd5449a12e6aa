"""Help, completion and small commands start fast, because they do not load modules that they do not need."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mqbridge.cli.app import Commands
from mqbridge.cli.commands.log import LogCommands
from mqbridge.cli.commands.spark import SparkCommands
from tests.patience import SERVER_PATIENCE_S

SERVERS = ("starlette", "uvicorn", "prometheus_client")
LIBRARIES = (*SERVERS, "httpx", "cryptography", "pyarrow", "pyspark")
CLIENTS = ("mqbridge.pulsar", "mqbridge.rocketmq", "mqbridge.tubemq", "mqbridge.log", "mqbridge.testing.memory")
UNUSED_BY_HELP = (
    *LIBRARIES,
    *CLIENTS,
    "yaml",
    "mqbridge.gateway",
    "mqbridge.delivery",
    "mqbridge.config.options",
    "mqbridge.spark",
)

PROGRAM = """
import atexit, sys
from mqbridge.cli.main import main
sys.argv[0] = "mqbridge"
atexit.register(lambda: print("\\nLOADED", *sys.modules, file=sys.stderr))
main()
"""


def loaded_modules(*arguments: str, environment: Mapping[str, str] | None = None) -> set[str]:
    """Run the program in a fresh interpreter; return the modules loaded at its end."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=SERVER_PATIENCE_S,
        check=True,
    )
    return set(run.stderr.rpartition("LOADED")[2].split())


def test_the_version_loads_only_the_command_line() -> None:
    modules = loaded_modules("--version")
    assert modules.isdisjoint({*UNUSED_BY_HELP, "pydantic", "asyncio", "rich"})


def test_the_list_of_commands_imports_no_command() -> None:
    modules = loaded_modules("--help")
    assert modules.isdisjoint({*UNUSED_BY_HELP, "pydantic", "asyncio"})
    assert not [name for name in modules if name.startswith("mqbridge.cli.commands.")]


@pytest.mark.parametrize(
    "arguments",
    [
        *((name,) for name in Commands.subcommands),
        *(("spark", name) for name in SparkCommands.subcommands),
        *(("log", name) for name in LogCommands.subcommands),
    ],
    ids=" ".join,
)
def test_help_loads_no_server_client_or_configuration(arguments: tuple[str, ...]) -> None:
    assert loaded_modules(*arguments, "--help").isdisjoint(UNUSED_BY_HELP)


@pytest.mark.parametrize(
    "arguments",
    [
        ("schema",),
        ("explain", "tubemq", "pulsar"),
        ("topics", "orders", "--create", "1", "--at"),
        ("peek", "orders", "--at"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_without_the_gateway_loads_no_server(
    arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if arguments[-1] == "--at":
        url = f"log://{tmp_path_factory.mktemp('startup')}/orders.db"
        loaded_modules("topics", "orders", "--create", "1", "--at", url)
        arguments = (*arguments, url)
    assert loaded_modules(*arguments).isdisjoint({*SERVERS, "pyspark", "pyarrow", "mqbridge.gateway", "mqbridge.spark"})


@pytest.mark.parametrize(
    "arguments", [("schema",), ("explain", "tubemq", "pulsar"), ("check", "mqbridge/shipped/tubemq-to-rocketmq.yaml")]
)
def test_a_command_that_opens_no_connection_loads_no_client(arguments: tuple[str, ...]) -> None:
    modules = loaded_modules(*arguments)
    assert modules.isdisjoint({"httpx", "cryptography"})
    assert not [name for name in modules if re.fullmatch(r"mqbridge\.\w+\.client\.connection\.connection(_pool)?", name)]


@pytest.mark.parametrize(
    "words", ["mqbridge ", "mqbridge pe", "mqbridge consume --", "mqbridge consume --at ", "mqbridge spark "]
)
def test_completion_loads_no_server_client_or_configuration(words: str) -> None:
    modules = loaded_modules(
        environment={
            "_MQBRIDGE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            "MQBRIDGE_PROFILES": "/nonexistent",
        }
    )
    assert modules.isdisjoint({*UNUSED_BY_HELP, "rich"} - {"yaml"})  # Typer itself loads pydantic


def test_check_loads_only_the_adapters_of_the_configuration(config: Path) -> None:
    modules = loaded_modules("check", str(config))
    systems = {name.split(".")[1] for name in modules if re.fullmatch(r"mqbridge\.\w+\.adapter\.config", name)}
    assert systems == {"log"}
    assert modules.isdisjoint({"uvicorn", "starlette", "google.protobuf"})
