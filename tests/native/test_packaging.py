"""The compiled module as a separate distribution: its version and files, and running without it or with a wrong one."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import orjson
import pytest

from mqbridge import __version__, native
from tests.patience import SERVER_PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
CRATE = ROOT / "native"

needs_module = pytest.mark.skipif(native.compiled is None, reason=native.notice)


def call(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SERVER_PATIENCE_S,
        check=False,
        env={**os.environ, **environ},
    )


def mqbridge(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return call("-m", "mqbridge", *arguments, **environ)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration written by the quickstart, whose source topic exists and is empty."""
    folder = tmp_path / "kept"
    done = mqbridge("quickstart", "-n", 8, "--keep", folder, "--json", MQBRIDGE_NATIVE="0")
    assert done.returncode == 0, done.stderr
    return folder / "quickstart.yaml"


def with_module(folder: Path, source: str) -> dict[str, str]:
    """Return environment variables with which `import mqbridge_native` runs this source."""
    folder.mkdir()
    (folder / "mqbridge_native.py").write_text(source)
    return {"PYTHONPATH": str(folder), native.SWITCH: "1"}


# --- the distribution -------------------------------------------------------------------------------------------------


def test_the_crate_has_the_version_of_mqbridge() -> None:
    crate = tomllib.loads((CRATE / "Cargo.toml").read_text())["package"]
    assert crate["version"] == __version__
    locked = tomllib.loads((CRATE / "Cargo.lock").read_text())["package"]
    assert {one["version"] for one in locked if one["name"] == crate["name"]} == {__version__}
    project = tomllib.loads((CRATE / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dynamic"]) == (crate["name"], ["version"])


def test_both_distributions_have_the_same_licence_and_python() -> None:
    ours, crate = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, CRATE))
    assert crate["license"] == ours["license"]
    assert crate["requires-python"] == ours["requires-python"]
    assert (CRATE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@needs_module
def test_types_and_licence_are_installed_with_the_module() -> None:
    files = {str(path) for path in importlib.metadata.files("mqbridge-native") or ()}
    assert {"mqbridge_native/__init__.pyi", "mqbridge_native/py.typed"} <= files
    assert any(name.endswith("licenses/LICENSE") for name in files)
    assert importlib.metadata.version("mqbridge-native") == __version__


# --- without the module -------------------------------------------------------------------------------------------------------


def test_the_quickstart_without_the_module_works_and_reports_it_once() -> None:
    done = mqbridge("quickstart", "-n", 2000, "--json", MQBRIDGE_NATIVE="0")
    assert done.returncode == 0, done.stderr
    assert orjson.loads(done.stdout)["holds"]
    assert done.stderr.count("without the compiled module") == 1
    assert "MQBRIDGE_NATIVE=0 disables it" in done.stderr


def test_run_without_the_module_logs_it_once_at_info(config: Path) -> None:
    done = mqbridge("run", config, "--until-idle", "0.1", MQBRIDGE_NATIVE="0")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "compiled module" in line]
    assert " INFO " in line
    assert "MQBRIDGE_NATIVE=0 disables it" in line


def test_the_notice_of_a_missing_module_has_the_command_to_install_it() -> None:
    program = (
        "import sys; sys.modules['mqbridge_native'] = None; from mqbridge.native import *; print(compiled, notice, is_broken)"
    )
    done = call("-c", program, MQBRIDGE_NATIVE="1")
    assert done.stdout.startswith("None running without the compiled module"), done.stderr
    assert "it is not installed; in a checkout `make setup` builds it" in done.stdout
    assert "docs/how-to/compiled.md" in done.stdout
    assert done.stdout.endswith("False\n")


@needs_module
def test_commands_that_use_the_module_do_not_mention_it(config: Path) -> None:
    for arguments in (["run", config, "--until-idle", "0.1"], ["check", config]):
        done = mqbridge(*arguments, MQBRIDGE_NATIVE="1")
        assert done.returncode == 0, done.stderr
        assert "compiled module" not in done.stderr
    assert mqbridge("--version", MQBRIDGE_NATIVE="1").stdout == f"mqbridge {__version__}\ncompiled module: in use\n"


# --- with a wrong module ------------------------------------------------------------------------------------------------------


def test_a_module_of_another_version_is_refused_with_a_warning(tmp_path: Path, config: Path) -> None:
    environ = with_module(tmp_path / "other", "VERSION = '9.9'")
    done = mqbridge("run", config, "--until-idle", "0.1", **environ)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "compiled module" in line]
    assert " WARNING " in line
    assert f"its version is 9.9, and mqbridge's is {__version__}; in a checkout `make setup` builds it" in line
    assert "compiled module: not in use: its version is 9.9" in mqbridge("--version", **environ).stdout


@pytest.mark.parametrize("source", ["raise ImportError('libc.so.6: too old')", "import mqbridge_native.missing"])
def test_a_module_that_cannot_be_loaded_is_a_warning(tmp_path: Path, config: Path, source: str) -> None:
    done = mqbridge("check", config, **with_module(tmp_path / "broken", source))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("without the compiled module") == 1
    assert "it cannot be loaded (" in done.stderr


# --- building the module ------------------------------------------------------------------------------------------------------


def output_of_cargo_sh(folder: Path, **programs: str) -> str:
    """Run `native/cargo.sh` with a PATH of these scripts and a few standard programs; return what it prints."""
    folder.mkdir()
    for name in ("sed", "dirname", "cut", "sort", "head"):
        (folder / name).symlink_to(
            next(Path(directory, name) for directory in os.environ["PATH"].split(":") if Path(directory, name).exists())
        )
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", CRATE / "cargo.sh"], capture_output=True, text=True, check=True, timeout=30, env={"PATH": str(folder)}
    )
    assert done.stderr == ""
    return done.stdout


def test_cargo_sh_prints_why_the_module_cannot_be_built(tmp_path: Path) -> None:
    assert output_of_cargo_sh(tmp_path / "none") == "cargo, of Rust, is not installed\n"
    assert output_of_cargo_sh(tmp_path / "broken", cargo="exit 1") == "cargo does not run\n"
    assert output_of_cargo_sh(tmp_path / "old", cargo="echo cargo 1.9.0 '(x)'") == "cargo is 1.9.0, and 1.85 is needed\n"
    assert output_of_cargo_sh(tmp_path / "no-linker", cargo="echo cargo 1.85.0") == "there is no C compiler, which links\n"
    assert output_of_cargo_sh(tmp_path / "fine", cargo="echo cargo 1.100.0", cc="exit 0") == ""
