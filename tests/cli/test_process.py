"""The command as a process of its own: exit codes, signals, pipes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE_S = 60


def start(*arguments: object, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "mqbridge", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


def finish(process: subprocess.Popen[str], stdin: str | None = None) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(stdin, timeout=DEADLINE_S)
    finally:
        process.kill()
    return process.returncode, out, err


def call(*arguments: object, stdin: str | None = None, **environ: str) -> tuple[int, str, str]:
    return finish(start(*arguments, **environ), stdin)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < limit, f"{path} never came"
        time.sleep(0.05)


def test_no_colours_in_a_pipe(config: Path) -> None:
    for arguments in (["--help"], ["check", config], ["check", "/none.yaml"]):
        _, out, err = call(*arguments)
        assert "\x1b" not in out + err


def test_an_expected_error_is_one_line_and_2(tmp_path: Path) -> None:
    code, out, err = call("run", tmp_path / "none.yaml")
    assert (code, out) == (2, "")
    problem = "the configuration cannot be read: No such file or directory. Check the path and its rights"
    assert err == f"error: {tmp_path}/none.yaml: {problem}\n"


def test_a_wrong_option_is_2() -> None:
    code, _, err = call("run", "--nonsense")
    assert code == 2
    assert "nonsense" in err


@pytest.fixture
def orders(config: Path) -> list[object]:
    options: list[object] = ["-F", config, "-b", "source"]
    assert call("topics", "orders", "--create", 1, *options)[0] == 0
    return options


def test_a_closed_pipe_is_no_error(orders: list[object]) -> None:
    call("produce", "-t", "orders", "-n", "200000", *orders, stdin="x" * 100)
    with start("consume", "-t", "orders", "-e", *orders) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "x" * 100 + "\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_drains_at_the_first_signal(config: Path, orders: list[object], tmp_path: Path, number: signal.Signals) -> None:
    call("produce", "-t", "orders", *orders, stdin="1\n2\n3\n")
    process = start("run", config, "--json")
    wait_for(tmp_path / "state.db")
    limit = time.monotonic() + DEADLINE_S
    while "3" not in call("groups", "orders", "-G", "g", *orders)[1]:
        assert time.monotonic() < limit, "the route never delivered"
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == 0, err
    assert json.loads(out)["routes"][0]["acknowledged"] == 3
    assert "draining" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_consume_is_interrupted(orders: list[object], number: signal.Signals) -> None:
    call("produce", "-t", "orders", *orders, stdin="1\n")
    process = start("consume", "-t", "orders", *orders)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(number)
    code, _, err = finish(process)
    assert (code, err) == (130, "")


def test_the_second_signal_quits_at_once() -> None:
    program = (
        "import asyncio, sys\n"
        "from mqbridge.cli import loop\n"
        "async def main():\n"
        "    print('begun', flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "def stop():\n"
        "    print('asked', flush=True)\n"
        "    return True\n"
        "loop.run(main(), stop=stop)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 130
    process.stdout.close()


def test_the_log_can_be_json_lines(config: Path, orders: list[object]) -> None:
    config.write_text(config.read_text() + "log: {format: json}\n")
    call("produce", "-t", "orders", *orders, stdin="x" * 2000)
    code, _, err = call("run", config, "--until-idle", "0.2")
    logged = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert code == 4
    assert any(one["level"] == "error" and "route copy stopped" in one["message"] for one in logged)
    assert all(one.keys() >= {"time", "level", "logger", "message"} for one in logged)
