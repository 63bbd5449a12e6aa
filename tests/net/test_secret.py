"""Secrets: their sources, when they are read again, and that they are never shown."""

import asyncio
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from pydantic import BaseModel, ValidationError

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.secret import Secret
from tests.patience import PATIENCE_S

CANARY = "canary-5f1e"


class Holder(BaseModel):
    secret: Secret


def printing(path: Path) -> list[str]:
    """Make a command that prints a file, and counts its runs in another file."""
    program = (
        "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.with_suffix('.runs').open('a').write('x'); print(p.read_text())"
    )
    return [sys.executable, "-c", program, str(path)]


async def test_every_source_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {CANARY}\n\n")
    monkeypatch.setenv("A_SECRET", CANARY)
    for value in (CANARY, {"file": str(file)}, {"env": "A_SECRET"}, {"command": printing(file)}):
        assert await Holder.model_validate({"secret": value}).secret.read() == CANARY
    assert await Secret(command=f"echo '{CANARY} two'").read() == f"{CANARY} two"


async def test_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    secret = Secret(file=file)
    assert await secret.read() == "one"
    file.write_text("two")
    assert (secret.last, await secret.read(), secret.last) == ("one", "two", "two")


async def test_a_command_is_run_again_when_a_fresh_one_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    secret = Secret(command=printing(file))
    assert await secret.read() == "one"
    file.write_text("two")
    assert await secret.read() == "one"
    monkeypatch.setattr("mqbridge.net.secret.MIN_COMMAND_PAUSE_S", 0.0)
    assert await secret.read(fresh=True) == "two"


async def test_concurrent_reads_share_one_run_of_a_command(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    secret = Secret(command=printing(file))
    assert set(await asyncio.gather(*(secret.read(fresh=True) for _ in range(10)))) == {"one"}
    assert file.with_suffix(".runs").read_text() == "x"


async def test_the_last_value_outlives_its_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text(CANARY)
    secret = Secret(file=file)
    await secret.read()
    file.unlink()
    assert await secret.read() == CANARY
    assert "using the last value that was read: No such file or directory" in caplog.text
    file.write_text("")
    assert await secret.read() == CANARY
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"file": "/nowhere/token"}, "the secret from file /nowhere/token cannot be read: No such file or directory"),
        ({"env": "NOT_SET_AT_ALL"}, "the secret from env NOT_SET_AT_ALL cannot be read: the variable is not set, or empty"),
        (
            {"command": "/nowhere/program --password=canary-5f1e"},
            "from command /nowhere/program cannot be read: No such",
        ),
        ({"command": ["sh", "-c", "echo canary-5f1e >&2; exit 3"]}, "the command ended with status 3; run it by hand"),
        ({"command": "true"}, "the command printed nothing"),
        ({"command": ["cat", "/dev/zero"]}, "the secret is larger than 64 KiB"),
        ({"command": ["printf", "\\377"]}, "the secret is not UTF-8 text"),
        ({"env": "NOT_TEXT"}, "the secret is not UTF-8 text"),
        ({"file": "~nobody-has-this-name/token"}, "home directory"),
    ],
)
async def test_an_unreadable_source_is_reported_without_the_secret(
    given: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_TEXT", os.fsdecode(b"canary-5f1e\xff"))
    with pytest.raises(ClusterError) as raised:
        await Holder.model_validate({"secret": given}).secret.read()
    assert why in str(raised.value)
    assert raised.value.failure is Failure.FATAL
    assert CANARY not in "".join(traceback.format_exception(raised.value))


async def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mqbridge.net.secret_sources.COMMAND_TIMEOUT_S", 0.2)
    pid_file = tmp_path / "pid"
    with pytest.raises(ClusterError, match="did not end within"):
        await Secret(command=["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"]).read()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_program_that_a_command_started_does_not_delay_its_result(
    is_waiting: bool, factory: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The child keeps the command's output open. It is killed with the command, unless the command detached it on purpose."""
    monkeypatch.setattr("mqbridge.net.secret_sources.COMMAND_TIMEOUT_S", 0.5)
    pid_file = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {pid_file}" + ("; wait" if is_waiting else "")

    async def ask() -> None:
        with pytest.raises(ClusterError, match="did not end within"):
            async with asyncio.timeout(PATIENCE_S):
                await Secret(command=["sh", "-c", script]).read()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(ask())
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + PATIENCE_S
    while is_waiting and not is_gone(pid) and time.monotonic() < deadline:  # it was sent a signal
        time.sleep(0.01)
    assert is_gone(pid) is is_waiting
    if not is_waiting:
        os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """Return True if the process has ended, also if it is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_failing_command_is_not_run_once_per_caller(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    secret = Secret(command=["sh", "-c", f"echo x >> {runs}; exit 1"])
    found = await asyncio.gather(*(secret.read(fresh=True) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(each, ClusterError) for each in found)
    assert runs.read_text() == "x\n"


async def test_a_command_with_a_refused_output_runs_again_after_a_pause(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    secret = Secret(command=printing(file))
    for _ in range(100):
        await secret.read(fresh=True)
    assert len(file.with_suffix(".runs").read_text()) < 100


def test_a_command_without_a_program_is_refused() -> None:
    with pytest.raises(ValidationError, match="names no program"):
        Holder.model_validate({"secret": {"command": "  "}})


def test_a_secret_is_read_in_several_event_loops(tmp_path: Path) -> None:
    """Like a job with an event loop per call; several tasks wait in each loop."""
    file = tmp_path / "token"
    file.write_text("one")
    secret = Secret(command=printing(file))

    async def ask() -> list[str]:
        return await asyncio.gather(*(secret.read(fresh=True) for _ in range(3)))

    assert [asyncio.run(ask()) for _ in range(2)] == [["one"] * 3] * 2


@pytest.mark.parametrize("given", [{}, {"text": "a", "file": "b"}, {"text": ""}, {"command": []}])
def test_a_secret_has_exactly_one_source(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="one non-empty source"):
        Secret(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", ["", 3, None, {}, {"fil": "x"}, {"file": 1}, {"file": "a", "env": "b"}, {"command": [1]}, ["a"]]
)
def test_an_invalid_secret_is_refused_without_showing_it(given: object) -> None:
    with pytest.raises(ValidationError) as raised:
        Holder.model_validate({"secret": given})
    (error,) = raised.value.errors()
    assert "must be a text" in error["msg"]


def test_a_secret_is_never_shown() -> None:
    holder = Holder.model_validate({"secret": CANARY})
    for shown in (repr(holder), str(holder), holder.model_dump_json(), f"{holder.secret}", str(holder.model_dump(mode="json"))):
        assert CANARY not in shown
    for again in ({"file": "/a"}, {"env": "E"}, {"command": ["get"]}):
        assert Holder.model_validate({"secret": again}).model_dump(mode="json") == {"secret": again}
    command = {"command": ["get", CANARY]}
    assert (
        CANARY
        not in repr(Holder.model_validate({"secret": command})) + Holder.model_validate({"secret": command}).model_dump_json()
    )


def test_secrets_compare_by_source_and_can_be_pickled() -> None:
    """A reload compares configurations, and Spark sends them to its workers."""
    one, same, other = Secret(file="/a"), Secret(file="/a"), Secret(file="/b")
    assert (one == same, one == other, hash(one) == hash(same)) == (True, False, True)
    for secret in (Secret("text"), one, Secret(env="E"), Secret(command=["a", "b c"])):
        assert pickle.loads(pickle.dumps(secret)) == secret
