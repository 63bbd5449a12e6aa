"""The guard cleans up even after a killed owner, and a cache entry is either complete or absent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.guard import clean_up, start_ticks
from tests.kit.maven import cached, mvn
from tests.kit.process import ClusterError

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0

OWNER = """
import os, subprocess, sys, threading
from pathlib import Path
from tests.kit.guard import guard
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
guard().process(child.pid)
guard().folder(Path(sys.argv[1]))
if sys.argv[2] == "hold" and os.fork() == 0:
    threading.Event().wait(3)  # holds the pipe to the guard open after the owner's end
    os._exit(0)
print(child.pid, flush=True)
if sys.argv[2] != "exit":
    threading.Event().wait()
"""


def wait_until_gone(pid: int, folder: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while start_ticks(pid) is not None or folder.exists():
        assert time.monotonic() < deadline, f"{pid} or {folder} is still there"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("mode", "end"), [("stay", signal.SIGKILL), ("stay", signal.SIGTERM), ("hold", signal.SIGKILL), ("exit", None)]
)
def test_guard_cleans_up_however_the_owner_ends(tmp_path: Path, mode: str, end: signal.Signals | None) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").write_text("x")
    with subprocess.Popen([sys.executable, "-c", OWNER, str(folder), mode], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        if end is not None:
            owner.send_signal(end)
        owner.wait(LIMIT_S)
        wait_until_gone(child, folder)


def test_a_process_with_a_reused_pid_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        clean_up([f"pid {other.pid} 1"])
        assert other.poll() is None
        clean_up([f"pid {other.pid} {start_ticks(other.pid)}"])
        assert other.wait(LIMIT_S) == -signal.SIGKILL


def test_concurrent_requests_create_a_cache_entry_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQBRIDGE_CACHE", str(tmp_path))
    made = []

    def make(into: Path) -> None:
        made.append(into)
        time.sleep(0.05)
        (into / "jar").write_text("content")

    with ThreadPoolExecutor(4) as pool:
        places = list(pool.map(lambda _: cached("thing", make), range(4)))
    assert set(places) == {tmp_path / "thing"}
    assert len(made) == 1
    assert (tmp_path / "thing" / "jar").read_text() == "content"


def test_a_failed_fetch_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQBRIDGE_CACHE", str(tmp_path))

    def make(into: Path) -> None:
        (into / "half").write_text("")
        raise ClusterError("the network is down")

    with pytest.raises(ClusterError, match="network"):
        cached("thing", make)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]


def test_missing_java_and_maven_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQBRIDGE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="apt-get install openjdk-17-jdk-headless maven"):
        mvn(["--version"], tmp_path)
