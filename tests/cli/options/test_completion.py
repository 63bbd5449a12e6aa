"""Shell completion, tested through the environment variables that the installed scripts set."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import SERVER_PATIENCE_S

PROGRAM = "import sys; from mqbridge.cli.main import main; sys.argv = ['mqbridge']; main()"
PROFILES_TEXT = "clusters:\n  lab: {system: log, path: /tmp/lab.db}\n  prod: {system: log, path: /tmp/prod.db}\n"
ROUTES = """\
clusters:
  source: {system: log, path: /tmp/source.db}
  target: {system: log, path: /tmp/target.db}
routes:
  - {name: a, from: {cluster: source, topic: orders, group: g}, to: {cluster: target, topic: x}}
  - {name: b, from: {cluster: source, topics: [payments, ~p.*], group: g}, to: {cluster: target, topic: x}}
  - {name: c, from: {cluster: target, topic: other, group: g}, to: {cluster: source, topic: x}}
"""


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    file = tmp_path / "clusters.yaml"
    file.write_text(PROFILES_TEXT)
    return file


@pytest.fixture
def gateway(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text(ROUTES)
    return file


def complete(line: str, profiles: Path, shell: str = "bash") -> list[str]:
    """Return the completions of the last word of a line; standard error must stay empty."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "MQBRIDGE_PROFILES": str(profiles),
        "_MQBRIDGE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=SERVER_PATIENCE_S, check=True
    )
    assert run.stderr == ""
    return run.stdout.splitlines() if run.stdout.strip() else []


def test_subcommands(profiles: Path) -> None:
    assert complete("mqbridge pe", profiles) == ["peek"]
    assert {"run", "check", "spark"} <= set(complete("mqbridge ", profiles))
    assert complete("mqbridge spark ", profiles) == ["quickstart", "mirror"]


def test_options(profiles: Path) -> None:
    assert complete("mqbridge consume --par", profiles) == ["--partition"]
    assert "--checkpoint" in complete("mqbridge spark mirror --", profiles)
    assert "--version" in complete("mqbridge --", profiles)
    assert complete("mqbridge spark mirror --through ", profiles) == ["pump", "rows"]


def test_profiles_and_schemes(profiles: Path) -> None:
    assert complete("mqbridge topics --at pro", profiles) == ["prod"]
    assert complete("mqbridge topics --at l", profiles) == ["lab", "log://"]
    assert {"lab", "prod", "pulsar://", "rocketmq://", "tubemq://"} <= set(complete("mqbridge topics --at ", profiles))


def test_systems(profiles: Path) -> None:
    assert complete("mqbridge explain tub", profiles) == ["tubemq"]
    assert complete("mqbridge explain tubemq pul", profiles) == ["pulsar"]


def test_clusters_and_topics_of_a_configuration(profiles: Path, gateway: Path) -> None:
    assert complete(f"mqbridge peek -F {gateway} -b ", profiles) == ["source", "target"]
    assert complete(f"mqbridge peek -F {gateway} ", profiles) == ["orders", "other", "payments"]
    assert complete(f"mqbridge peek -F {gateway} -b source ", profiles) == ["orders", "payments"]
    assert complete(f"mqbridge consume -F {gateway} -t pay", profiles) == ["payments"]


@pytest.mark.parametrize("text", ["{", "clusters: [1]", "clusters: {a: !odd 1}", "clusters: {1: {}}", "\x00", ""])
def test_a_damaged_file_completes_nothing_and_prints_no_error(profiles: Path, text: str) -> None:
    profiles.write_text(text)
    assert complete("mqbridge topics --at pro", profiles) == []


def test_a_missing_file_completes_nothing(tmp_path: Path) -> None:
    assert complete("mqbridge topics --at pro", tmp_path / "missing") == []
    assert complete(f"mqbridge peek -F {tmp_path}/missing -b ", tmp_path / "missing") == []


def test_file_arguments_are_left_to_the_shell(profiles: Path) -> None:
    assert complete("mqbridge check ", profiles) == []
    assert complete("mqbridge check ", profiles, "zsh") == ["_files"]
    assert complete("mqbridge check ", profiles, "fish") == []
    assert complete("mqbridge topics -F ", profiles) == []


def test_other_shells(profiles: Path) -> None:
    assert '"peek":"Show the newest messages' in "\n".join(complete("mqbridge pe", profiles, "zsh"))
    assert [line.split("\t")[0] for line in complete("mqbridge pe", profiles, "fish")] == ["peek"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_the_program_for_completions(shell: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "_MQBRIDGE_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        timeout=SERVER_PATIENCE_S,
        check=True,
    )
    assert f"_MQBRIDGE_COMPLETE=complete_{shell}" in run.stdout
    assert run.stderr == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_printed_script(profiles: Path, tmp_path: Path) -> None:
    program = tmp_path / "mqbridge"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom mqbridge.cli.main import main\nsys.argv[0] = 'mqbridge'\nmain()\n")
    program.chmod(0o755)
    script = (
        f"export PATH={tmp_path}:$PATH MQBRIDGE_PROFILES={profiles}; source <(_MQBRIDGE_COMPLETE=source_bash mqbridge);"
        "COMP_WORDS=(mqbridge topics --at pro); COMP_CWORD=3; _mqbridge_completion mqbridge; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    run = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=SERVER_PATIENCE_S, check=True)
    assert (run.stdout, run.stderr) == ("prod\n", "")
