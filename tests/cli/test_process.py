"""The command as a process of its own: exit codes, signals, pipes."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from mqbridge import __version__
from tests.kit.process import free_ports
from tests.patience import SERVER_PATIENCE_S


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
        out, err = process.communicate(stdin, timeout=SERVER_PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, out, err


def call(*arguments: object, stdin: str | None = None, **environ: str) -> tuple[int, str, str]:
    return finish(start(*arguments, **environ), stdin)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + SERVER_PATIENCE_S
    while not path.exists():
        assert time.monotonic() < limit, f"{path} was never created"
        time.sleep(0.05)


def test_no_colours_in_a_pipe(config: Path) -> None:
    for arguments in (["--help"], ["check", config], ["check", "/none.yaml"]):
        _, out, err = call(*arguments)
        assert "\x1b" not in out + err


def test_an_expected_error_is_one_line_with_exit_code_2(tmp_path: Path) -> None:
    code, out, err = call("run", tmp_path / "none.yaml")
    assert (code, out) == (2, "")
    problem = "the configuration cannot be read: No such file or directory. Check the path and its permissions"
    assert err == f"error: {tmp_path}/none.yaml: {problem}\n"


def test_a_wrong_option_has_exit_code_2() -> None:
    code, _, err = call("run", "--nonsense")
    assert code == 2
    assert "nonsense" in err


@pytest.fixture
def orders(config: Path) -> list[object]:
    options: list[object] = ["-F", config, "-b", "source"]
    assert call("topics", "orders", "--create", 1, *options)[0] == 0
    return options


@pytest.mark.parametrize("arguments", [["--version"], ["check", "none.yaml"], ["run", "none.yaml"]], ids=" ".join)
def test_ctrl_c_before_a_command_starts_is_quiet(arguments: list[str]) -> None:
    """The program interrupts itself at its 3rd, 50th or 300th import."""
    program = (
        "import builtins, os, signal, sys\n"
        "sys.argv[1:] = {arguments!r}\n"
        "original, remaining = builtins.__import__, {count}\n"
        "def counted(name, *rest):\n"
        "    global remaining\n"
        "    remaining -= 1\n"
        "    if remaining == 0:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return original(name, *rest)\n"
        "from mqbridge.cli.main import main\n"
        "builtins.__import__ = counted\n"
        "main()\n"
    )
    for count in (3, 50, 300):
        code = program.format(arguments=arguments, count=count)
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=SERVER_PATIENCE_S
        )
        assert (done.returncode, done.stderr) == (130, ""), count


def test_a_closed_pipe_is_not_an_error(orders: list[object]) -> None:
    call("produce", "-t", "orders", "-n", "200000", *orders, stdin="x" * 100)
    with start("consume", "-t", "orders", "-e", *orders) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "x" * 100 + "\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(SERVER_PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_drains_at_the_first_signal(config: Path, orders: list[object], tmp_path: Path, number: signal.Signals) -> None:
    call("produce", "-t", "orders", *orders, stdin="1\n2\n3\n")
    process = start("run", config, "--json")
    wait_for(tmp_path / "state.db")
    limit = time.monotonic() + SERVER_PATIENCE_S
    while '"committed":"3"' not in call("groups", "orders", "-G", "g", "--json", *orders)[1].replace(" ", ""):
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_produce_counts_the_messages_that_it_sent(orders: list[object], number: signal.Signals) -> None:
    process = start("produce", "-t", "orders", *orders, "--json")
    assert process.stdin is not None
    process.stdin.write("1\n2\n3\n")
    process.stdin.flush()  # standard input stays open, so that the command does not end by itself
    limit = time.monotonic() + SERVER_PATIENCE_S
    while call("consume", "-t", "orders", "-e", *orders)[1] != "1\n2\n3\n":
        assert time.monotonic() < limit, "the messages never arrived"
    process.send_signal(number)
    assert process.wait(SERVER_PATIENCE_S) == 130
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.read())["stored"] == 3
    assert "Traceback" not in process.stderr.read()
    finish(process)


def test_members_are_shown_while_they_consume_and_keep_their_group_from_being_moved(orders: list[object]) -> None:
    call("produce", "-t", "orders", *orders, stdin="1\n2\n")
    with start("consume", "-t", "orders", "-G", "g", *orders) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        (member,) = json.loads(call("groups", "orders", "--members", "--json", *orders)[1])
        assert (member["group"], member["partitions"]) == ("g", ["0"])
        (row,) = json.loads(call("groups", "orders", "--json", *orders)[1])
        assert row["member"] == member["member"]
        code, _, err = call("offsets", "orders", "-G", "g", "--reset", "earliest", "--yes", *orders)
        assert (code, f"has members ({member['member']}): stop them, then move the group's offsets" in err) == (3, True)
        process.send_signal(signal.SIGTERM)
        assert finish(process)[0] == 130
    assert call("groups", "orders", "--members", *orders)[2] == "no member consumes the topic now\n"
    assert call("offsets", "orders", "-G", "g", "--reset", "earliest", "--yes", *orders)[0] == 0


@pytest.mark.parametrize("stderr", ["/dev/full", None], ids=["full", "without a reader"])
def test_sigterm_drains_a_gateway_whose_standard_error_cannot_be_written(
    config: Path, orders: list[object], tmp_path: Path, stderr: str | None
) -> None:
    call("produce", "-t", "orders", *orders, stdin="1\n2\n3\n")
    read_end, write_end = os.pipe()
    target = write_end if stderr is None else os.open(stderr, os.O_WRONLY)
    program = [sys.executable, "-m", "mqbridge", "run", str(config), "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=target) as process:
        for descriptor in {read_end, write_end, target}:
            os.close(descriptor)
        wait_for(tmp_path / "state.db")
        limit = time.monotonic() + SERVER_PATIENCE_S
        while '"committed":"3"' not in call("groups", "orders", "-G", "g", "--json", *orders)[1].replace(" ", ""):
            assert time.monotonic() < limit, "the route never delivered"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=SERVER_PATIENCE_S)
    assert process.returncode == 0
    assert json.loads(out)["routes"][0]["acknowledged"] == 3


def start_interrupted(config: Path, number: signal.Signals) -> "subprocess.Popen[str]":
    """Start a gateway that sends itself this signal while it imports its modules."""
    program = (
        "import builtins, os, sys\n"
        f"sys.argv[1:] = ['run', {str(config)!r}]\n"
        "original, remaining = builtins.__import__, 500\n"
        "def counted(name, *rest):\n"
        "    global remaining\n"
        "    remaining -= 1\n"
        "    if remaining == 0:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "    return original(name, *rest)\n"
        "from mqbridge.cli.main import main\n"
        "builtins.__import__ = counted\n"
        "main()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_sighup_while_the_gateway_starts_reloads_it(config: Path, orders: list[object]) -> None:
    process = start_interrupted(config, signal.SIGHUP)
    assert process.stderr is not None
    while "was reloaded" not in (line := process.stderr.readline()):
        assert line, "the gateway ended"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 0


def test_sigterm_while_the_gateway_starts_ends_it_in_order(config: Path, orders: list[object]) -> None:
    code, _, err = finish(start_interrupted(config, signal.SIGTERM))
    assert (code, "Traceback" in err) == (0, False)


def test_binary_goes_through_pipes_byte_for_byte(orders: list[object]) -> None:
    payload = bytes(range(256)) * 100
    make = [sys.executable, "-m", "mqbridge"]
    options = ["-t", "orders", *map(str, orders)]
    subprocess.run([*make, "produce", "-", *options], input=payload, check=True, timeout=SERVER_PATIENCE_S)
    out = subprocess.run(
        [*make, "consume", "-e", "-f", "%s", *options], stdout=subprocess.PIPE, check=True, timeout=SERVER_PATIENCE_S
    )
    assert out.stdout == payload


def test_the_second_signal_quits_at_once() -> None:
    program = (
        "import asyncio, sys\n"
        "from mqbridge.cli.process import event_loop\n"
        "async def main():\n"
        "    print('begun', flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "def stop():\n"
        "    print('asked', flush=True)\n"
        "    return True\n"
        "event_loop.run(main(), stop=stop)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SERVER_PATIENCE_S) == 130
    process.stdout.close()


# --- the log ------------------------------------------------------------------------------------------------------------


def json_lines(err: str) -> list[dict[str, object]]:
    """Parse every line of standard error; each must be JSON."""
    found = [json.loads(line) for line in err.splitlines()]
    assert all(one.keys() >= {"time", "level", "logger", "message"} for one in found)
    return found


def lines_with(err: str, text: str) -> list[dict[str, object]]:
    """Return the log lines whose message contains this text."""
    return [one for one in json_lines(err) if text in str(one["message"])]


def test_a_json_log_is_all_json(config: Path, orders: list[object]) -> None:
    """Every line is JSON, also the notes for people."""
    config.write_text(config.read_text().replace("{enabled: false}", "{listen: '127.0.0.1:0'}") + "log: {format: json}\n")
    call("produce", "-t", "orders", *orders, stdin="x" * 2000)
    code, _, err = call("run", config, "--until-idle", "0.2")
    assert code == 4
    assert [one["level"] for one in lines_with(err, "route copy stopped: ")] == ["error"]
    assert lines_with(err, "route copy: 1 received, ")
    assert json_lines(err)[0]["message"] == lines_with(err, "starts: configuration")[0]["message"]


def test_problems_are_json_if_the_configuration_asks_for_it(config: Path) -> None:
    config.write_text(config.read_text().replace("cluster: target", "cluster: tagret") + "log: {format: json}\n")
    code, _, err = call("run", config)
    assert code == 2
    assert [one["level"] for one in lines_with(err, "there is no cluster 'tagret'")] == ["error"]
    config.write_text(config.read_text().replace("cluster: tagret", "cluster: target"))
    code, _, err = call("run", config, "--fail-fast")
    assert code == 3
    assert [one["level"] for one in lines_with(err, "the topic 'orders' does not exist")] == ["error"]


def test_draining_is_logged_as_json(config: Path, orders: list[object], tmp_path: Path) -> None:
    config.write_text(config.read_text() + "log: {format: json}\n")
    process = start("run", config)
    wait_for(tmp_path / "target.db")
    assert process.stderr is not None
    first = ""
    while "(1 partitions)" not in first:
        first += (line := process.stderr.readline())
        assert line, first
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 0
    json_lines(first + err)


def test_warnings_and_uncaught_exceptions_are_json() -> None:
    program = (
        "import threading, warnings\n"
        "from mqbridge.cli.process import logs\n"
        "logs.configure('warning', 'json')\n"
        "warnings.warn('old', stacklevel=1)\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start()\n"
        "thread.join()\n"
        "raise SystemError('a bug')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=SERVER_PATIENCE_S)
    assert done.returncode == 1
    warned, in_thread, ended = json_lines(done.stderr)
    assert (warned["logger"], "UserWarning: old" in str(warned["message"])) == ("py.warnings", True)
    assert in_thread["message"] == "uncaught ZeroDivisionError: division by zero"
    assert (ended["level"], ended["message"]) == ("critical", "uncaught SystemError: a bug")
    assert all("Traceback" in str(one["exception"]) for one in (in_thread, ended))


def test_the_web_server_has_no_log_of_its_own(config: Path, orders: list[object]) -> None:
    """An invalid request makes the web server log a warning, which must be a line of our log."""
    config.write_text(config.read_text().replace("{enabled: false}", "{listen: '127.0.0.1:0'}") + "log: {format: json}\n")
    process = start("run", config)
    assert process.stderr is not None
    first = process.stderr.readline()
    host, _, port = str(json.loads(first)["message"]).rpartition("http://")[2].partition(":")
    assert int(port) > 0  # the actual port, not the configured port 0
    lines = [first]
    while not any("Invalid HTTP request" in line for line in lines):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            assert connection.recv(100)
        lines.append(process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 0
    json_lines("".join(lines) + err)


def test_the_start_line_has_version_file_and_address(config: Path, orders: list[object]) -> None:
    config.write_text(config.read_text().replace("{enabled: false}", "{listen: '127.0.0.1:0'}"))
    code, _, err = call("run", config, "--until-idle", "0.2")
    assert code == 0
    found = re.search(
        r"mqbridge (\S+) starts: configuration (\S+), metrics and health: http://127.0.0.1:(\d+)", err.splitlines()[0]
    )
    assert found is not None, err
    assert (found[1], found[2]) == (__version__, str(config))
    assert int(found[3]) > 0


def test_the_reason_of_a_stop_is_logged_once(config: Path, orders: list[object]) -> None:
    call("produce", "-t", "orders", *orders, stdin="x" * 2000)
    code, _, err = call("run", config, "--until-idle", "0.2")
    assert (code, err.count("the log accepts at most 1000")) == (4, 1)
    assert err.splitlines()[-1].endswith("; stopped, see the error above")


def test_debug_logs_nothing_of_the_http_library() -> None:
    program = (
        "import asyncio, logging\n"
        "from mqbridge.cli.process import logs\n"
        "from mqbridge.errors import ClusterError\n"
        "from mqbridge.pulsar.client.admin.admin import Admin\n"
        "logs.configure('debug')\n"
        "logging.getLogger('mqbridge').debug('ours')\n"
        "async def main():\n"
        "    try:\n"
        "        await Admin('http://127.0.0.1:1', 1.0).tenants()\n"
        "    except ClusterError:\n"
        "        print('tried')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=SERVER_PATIENCE_S)
    assert done.stdout == "tried\n", done.stderr
    loggers = {line.split()[3] for line in done.stderr.splitlines()}
    assert "mqbridge:" in loggers
    assert not {name for name in loggers if name.startswith("http")}


# --- unreachable clusters -----------------------------------------------------------------------------------------------


@pytest.fixture
def unreachable(config: Path) -> Path:
    """A configuration whose target cluster has no reachable name server."""
    text = config.read_text().replace("{cluster: target,", "{cluster: absent,")
    config.write_text(text.replace("clusters:\n", "clusters:\n  absent: {system: rocketmq, name_servers: '127.0.0.1:1'}\n"))
    return config


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_waiting_for_a_cluster_ends_run_at_once(
    unreachable: Path, orders: list[object], number: signal.Signals
) -> None:
    process = start("run", unreachable)
    assert process.stderr is not None
    waiting = "cluster absent cannot be reached, trying again "
    while waiting not in (line := process.stderr.readline()):
        assert line, "the process has ended"
    assert "127.0.0.1:1" in line
    process.send_signal(number)
    code, _, err = finish(process)
    assert (code, "Traceback" in err) == (0, False)


@pytest.mark.parametrize("options", [["--fail-fast"], ["--until-idle", "1"]], ids=" ".join)
def test_fail_fast_ends_run_if_a_cluster_is_unreachable(unreachable: Path, orders: list[object], options: list[str]) -> None:
    code, _, err = call("run", unreachable, *options)
    assert code == 3
    assert "error: no name server can be reached: 127.0.0.1:1 " in err


def test_the_second_signal_prints_the_batches_in_flight(config: Path, orders: list[object], tmp_path: Path) -> None:
    """A transaction of this test locks the target's file, so that the sent batches stay in flight."""
    (port,) = free_ports(1)
    config.write_text(config.read_text().replace("{enabled: false}", f"{{listen: '127.0.0.1:{port}'}}"))
    process = start("run", config)
    limit = time.monotonic() + SERVER_PATIENCE_S

    def routes() -> list[dict[str, int]]:
        try:
            return list(httpx.get(f"http://127.0.0.1:{port}/routes").json())
        except httpx.TransportError:
            return []

    while not (found := routes()) or not found[0]["lanes"]:
        assert time.monotonic() < limit
    with closing(sqlite3.connect(tmp_path / "target.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        call("produce", "-t", "orders", *orders, stdin="1\n2\n3\n")
        while not routes()[0]["received"]:
            assert time.monotonic() < limit
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "draining" not in (line := process.stderr.readline()):
            assert line, "the process has ended"
        process.send_signal(signal.SIGTERM)
        code, _, err = finish(process)
    assert code == 130
    assert "route copy leaves 1 batches in flight (0.0 MB): they are delivered again by the next run" in err
