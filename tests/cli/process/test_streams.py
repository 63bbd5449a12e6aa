"""Every command with closed, full and left standard streams, in other encodings, and with bytes that are not UTF-8."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from mqbridge.cli.process.streams import ErrorDescriptor, OutputDescriptor, OutputFailed
from tests.patience import SERVER_PATIENCE_S

RAW = os.fsdecode(b"\xb4")
"""A byte that is not UTF-8, as an argument."""
SHOWING = [
    ["--version"],
    ["--help"],
    ["schema"],
    ["explain", "tubemq", "pulsar"],
    ["check", "FILE", "--json"],
    ["topics", "orders"],
    ["groups", "orders", "--json"],
    ["peek", "orders"],
    ["peek", "orders", "--json"],
    ["consume", "-t", "orders", "-e"],
]
"""Commands that write to standard output."""
WITHOUT_CLUSTER = {"--version", "--help", "schema", "explain", "check"}


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with one cluster; its topic `orders` has a message with names and texts that are not ASCII."""
    folder = tmp_path_factory.mktemp("streams")
    config = folder / "clusters.yaml"
    config.write_text(f"clusters: {{source: {{system: log, path: '{folder}/source.db'}}}}\n")
    assert run(config, ["topics", "orders", "--create", "1"]).returncode == 0
    assert run(config, ["produce", "-t", "orders", "-k", "kä", "-H", "ß=ü"], stdin="→ é\n".encode()).returncode == 0
    return config


def run(
    file: Path,
    arguments: list[str],
    redirections: str = "",
    *,
    stdin: bytes = b"",
    environ: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a shell with these redirections; it reads the cluster `source` of the file."""
    options = [] if arguments[0] in WITHOUT_CLUSTER else ["-F", str(file), "-b", "source"]
    program = [sys.executable, "-m", "mqbridge", *(str(file) if text == "FILE" else text for text in arguments), *options]
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirections}', "bash", *program],
        check=False,
        input=stdin,
        capture_output=True,
        timeout=SERVER_PATIENCE_S,
        env={**os.environ, **environ},
    )


@pytest.mark.parametrize("arguments", SHOWING, ids=" ".join)
def test_output_that_cannot_be_written_ends_a_command_with_the_reason(orders: Path, arguments: list[str]) -> None:
    for redirection, reason in ((">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")):
        done = run(orders, arguments, redirection)
        assert done.stderr.decode() == f"error: standard output cannot be written: {reason}\n"
        assert done.returncode == 4


@pytest.mark.parametrize("arguments", SHOWING, ids=" ".join)
def test_a_reader_that_leaves_is_no_error(orders: Path, arguments: list[str]) -> None:
    done = run(orders, arguments, '| true; exit "${PIPESTATUS[0]}"')
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_exit_code_tells_of_the_problem_although_the_reader_left(tmp_path: Path) -> None:
    done = run(tmp_path / "none.yaml", ["check", "FILE", "--json"], '| true; exit "${PIPESTATUS[0]}"')
    assert (done.returncode, done.stderr) == (2, b"")


@pytest.mark.parametrize("redirection", ["2>&- <&-", "2>/dev/full"])
def test_closed_and_full_streams_that_a_command_does_not_need(orders: Path, redirection: str) -> None:
    for arguments in (["--help"], ["topics", "orders"], ["peek", "orders", "--json"], ["consume", "-t", "orders", "-e"]):
        done = run(orders, arguments, redirection)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout


def test_notes_are_lost_if_standard_error_is_full(orders: Path) -> None:
    assert run(orders, ["produce", "-t", "orders"], "2>/dev/full", stdin=b"x\n").returncode == 0
    assert run(orders, ["peek", "none"], "2>/dev/full").returncode == 3
    assert run(orders, ["nonsense"], "2>/dev/full").returncode == 2


def test_closed_standard_input_cannot_be_read(orders: Path) -> None:
    done = run(orders, ["produce", "-t", "orders"], "<&-")
    assert done.returncode == 2
    assert b"error: standard input cannot be read: Bad file descriptor" in done.stderr


@pytest.mark.parametrize(
    "environ",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
    ],
    ids=["C", "ascii", "latin-1"],
)
def test_other_encodings_of_the_terminal(orders: Path, environ: dict[str, str]) -> None:
    for arguments in (["--help"], ["explain", "tubemq", "pulsar"], ["topics", "orders"]):
        done = run(orders, arguments, environ=environ)
        assert (done.returncode, done.stderr) == (0, b"")
    shown = run(orders, ["peek", "orders"], environ=environ).stdout
    assert rb"\u2192" in shown, "a character that the terminal does not have is an escape"
    message = orjson.loads(run(orders, ["peek", "orders", "--first", "-c", "1", "--json"], environ=environ).stdout)
    assert (message["key"], message["payload"], message["properties"]) == ("kä", "→ é", [["ß", "ü"]])
    assert run(orders, ["consume", "-t", "orders", "-c", "1", "-f", "ö%k"], environ=environ).stdout == "ökä".encode()
    assert run(orders, ["offsets", "orders", "-G", "ö"], environ=environ).returncode == 0, "a name in UTF-8"


def test_bytes_of_messages_need_not_be_utf8(orders: Path) -> None:
    texts = ["-k", f"k{RAW}", "-T", f"t{RAW}", "-H", f"n{RAW}=v{RAW}", "--ordering-key", RAW, "--index-key", f"i{RAW}"]
    assert run(orders, ["produce", "-t", "orders", "-D", RAW, *texts], stdin=b"one\xb4two").returncode == 0
    form = f"%k %g %h %y %i %s{RAW}"
    shown = run(orders, ["consume", "-t", "orders", "-e", "-T", f"t{RAW}", "-f", form]).stdout
    one = b"k\xb4 t\xb4 n\xb4=v\xb4 \xb4 i\xb4 "
    assert shown == one + b"one\xb4" + one + b"two\xb4"
    done = run(orders, ["peek", "orders", "--json"])
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", RAW, "--create", "1"],
        ["peek", "orders", "-p", RAW],
        ["consume", "-t", "orders", "-e", "-G", RAW],
        ["offsets", "orders", "-G", RAW],
        ["produce", "-t", RAW],
    ],
    ids=lambda arguments: " ".join(arguments).replace(RAW, "RAW"),
)
def test_names_must_be_utf8(orders: Path, arguments: list[str]) -> None:
    done = run(orders, arguments)
    assert (done.returncode, done.stderr) == (2, b"error: the argument '\\xb4' is not UTF-8. Write names in UTF-8\n")


def test_names_of_files_need_not_be_utf8(orders: Path, tmp_path: Path) -> None:
    (tmp_path / RAW).write_bytes(b"content")
    assert run(orders, ["produce", "-t", "orders", str(tmp_path / RAW)]).returncode == 0
    file = tmp_path / f"{RAW}.yaml"
    done = run(file, ["check", "FILE", "--json"])
    assert done.returncode == 2
    assert orjson.loads(done.stdout)["file"] == f"{tmp_path}/\\xb4.yaml"
    assert run(file, ["check", "FILE"]).stderr.startswith(f"error: {tmp_path}/\\xb4.yaml: ".encode())


# --- the descriptors ----------------------------------------------------------------------------------------------------


def test_a_reader_of_standard_error_that_does_not_read_costs_lines_but_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.cli.process.streams.STDERR_PATIENCE_S", 0.0)
    read_end, write_end = os.pipe()
    stream = ErrorDescriptor(write_end)
    line = b"x" * 1000
    while not stream.lost_writes:
        stream.write(line)
    assert (stream.write(line), stream.lost_writes, stream.reason) == (1000, 2, "its reader does not read")
    os.read(read_end, 1 << 20)
    assert (stream.write(line), stream.lost_writes) == (1000, 0)
    os.close(read_end)
    stream.write(line)
    assert stream.reason == "Broken pipe"
    os.close(write_end)


def test_standard_output_that_another_process_made_non_blocking(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    program = (
        "import sys; from mqbridge.cli.process import streams; streams.prepare()\n"
        "sys.stdout.buffer.write(b'x' * 1_000_000); sys.stdout.flush()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=write_end, stderr=subprocess.PIPE) as process:
        os.close(write_end)
        with os.fdopen(read_end, "rb") as output:
            assert len(output.read()) == 1_000_000
        assert process.communicate(timeout=SERVER_PATIENCE_S)[1] == b""


def test_a_failure_of_standard_output_is_raised_once() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        stream = OutputDescriptor(full.fileno())
        with pytest.raises(OutputFailed, match="No space left on device"):
            stream.write(b"x")
        assert stream.write(b"xy") == 2
