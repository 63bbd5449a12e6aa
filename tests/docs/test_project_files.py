"""The files by which others join the project: versions, workflows, issue forms, and the promises of compatibility."""

import re
import shutil
import tomllib
from importlib import import_module, util
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqbridge import __version__
from tests.docs.pages import ROOT
from tests.docs.shell import commands, program
from tests.kit.maven import cache_folder
from tools import version

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
COMPATIBILITY = ROOT / "docs/explanation/compatibility.md"
ELEMENTS = {"markdown", "input", "textarea", "dropdown", "checkboxes"}
"""The elements that an issue form may have."""


def name_of(path: Path) -> str:
    return path.name


def steps(workflow: Path) -> list[dict[str, Any]]:
    """Return the steps of all jobs."""
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


def pythons() -> list[str]:
    """Return the supported versions of Python, as the package declares them."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [found[1] for each in classifiers if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))]


# --- the version ------------------------------------------------------------------------------------------------------


def test_all_files_have_the_same_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert version.main([]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that contain the version."""
    for name in (*version.PLACES, version.CHANGELOG):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def headings(folder: Path) -> list[str]:
    return re.findall(r"^## .*", (folder / version.CHANGELOG).read_text(), re.MULTILINE)


def test_a_release_gets_its_version_and_date_and_the_next_one_a_section(copy: Path) -> None:
    (copy / version.CHANGELOG).write_text("# Changelog\n\n## 9.8.7 (unreleased)\n\n- A change.\n")
    version.set_version("10.0.1", "2030-01-31", copy)
    assert set.union(*version.versions(copy).values()) == {"10.0.1"}
    assert headings(copy) == ["## 10.0.1 (2030-01-31)"]
    version.set_version("10.0.1", "2030-02-01", copy)
    assert headings(copy) == ["## 10.0.1 (2030-02-01)"]
    version.set_version("10.1.0", root=copy)
    assert headings(copy) == ["## 10.1.0 (unreleased)", "## 10.0.1 (2030-02-01)"]
    assert set.union(*version.versions(copy).values()) == {"10.1.0"}
    assert (copy / version.CHANGELOG).read_text().endswith("## 10.0.1 (2030-02-01)\n\n- A change.\n")


def test_only_the_version_changes(copy: Path) -> None:
    before = {name: (copy / name).read_text() for name in version.PLACES}
    version.set_version("10.0.1", root=copy)
    for name, text in before.items():
        assert (copy / name).read_text() == text.replace(__version__, "10.0.1"), name


def test_a_file_with_another_version_is_named(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "native/Cargo.toml").write_text('[package]\nname = "mqbridge-native"\nversion = "0.0.1"\n')
    monkeypatch.setattr(version, "versions", lambda versions=version.versions: versions(copy))
    assert version.main([]) == 1
    assert "native/Cargo.toml: 0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["0.3"], ["v0.3.0"], ["0.3.0", "--date", "tomorrow"]])
def test_a_text_that_is_no_version_is_rejected(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        version.main(arguments)


# --- workflows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name_of)
def test_workflows_call_make_targets_that_exist(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = re.sub(r"\$\{\{.*?\}\}", "1", "\n".join(step["run"] for step in steps(workflow) if "run" in step))
    made = {
        word
        for words in commands(lines)
        for name, called in [program(words)]
        if name == "make"
        for word in called
        if "=" not in word
    }
    assert made
    assert made <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name_of)
def test_actions_are_pinned_by_their_major_version(workflow: Path) -> None:
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]), step["uses"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name_of)
def test_every_job_ends_and_may_only_read(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in content["jobs"].values())


def test_the_tests_run_with_every_supported_version_of_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={pythons()[0]}"
    jobs = {name: job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()}
    matrices = [
        job["strategy"]["matrix"]["python"] for job in jobs.values() if "python" in job.get("strategy", {}).get("matrix", {})
    ]
    assert len(matrices) == 3
    assert all(matrix == pythons() for matrix in matrices)
    assert f"CPython {pythons()[0]} to {pythons()[-1]}" in COMPATIBILITY.read_text()


def test_the_servers_are_cached_where_the_tests_look_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MQBRIDGE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    caches = [step["with"] for step in steps(GITHUB / "workflows/tests.yml") if step.get("uses", "").startswith("actions/cache@")]
    assert len(caches) == 2
    for cache in caches:
        assert f"~/{cache_folder().relative_to(tmp_path)}" in cache["path"].split()
        for pattern in re.findall(r"'([^']+)/\*\*'", cache["key"]):
            assert (ROOT / pattern).is_dir()


# --- issues and pull requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_issue_forms_are_complete(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= content.keys()
    ids = [element["id"] for element in content["body"] if element["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for element in content["body"]:
        assert element["type"] in ELEMENTS
        assert ("value" if element["type"] == "markdown" else "label") in element["attributes"]
        assert all(isinstance(option, str | dict) for option in element["attributes"].get("options", ())), "quote yes and no"


@pytest.mark.parametrize("path", [*FORMS, *GITHUB.rglob("*.md")], ids=name_of)
def test_files_and_targets_that_the_templates_name_exist(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(r"\b([\w./-]+\.md)\b", text):
        assert (ROOT / name).exists(), name
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)`", text)) <= targets


# --- compatibility ----------------------------------------------------------------------------------------------------


def test_public_modules_and_names_exist() -> None:
    names = set(re.findall(r"`(mqbridge\.[\w.]+)`", COMPATIBILITY.read_text()))
    properties = {"mqbridge.dead.reason"}
    groups = {name for name in names if name in entry_points().groups} | {"mqbridge.pulsar_auth"}
    for name in names - properties - groups:
        module, _, attribute = name.rpartition(".")
        if util.find_spec(module) is not None and hasattr(import_module(module), attribute):
            continue
        assert util.find_spec(name) is not None, name
    assert "mqbridge.adapters" in groups


def test_the_versions_of_the_formats_are_current() -> None:
    rows = re.findall(r"^\| .* \| (\d+) \| `(mqbridge[\w.]+)\.(\w+)` \|$", COMPATIBILITY.read_text(), re.MULTILINE)
    assert len(rows) == 4
    for number, module, constant in rows:
        assert getattr(import_module(module), constant) == int(number), module
