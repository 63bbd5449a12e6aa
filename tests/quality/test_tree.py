"""The tests mirror the source tree.

A test file lies in the folder of `tests/` that has the path of the package that it tests in `mqbridge/`, and its name is
`test_NAME.py` or `test_NAME_ASPECT.py`: NAME is a module or a subpackage of that package, or the package itself. Tests of a whole
package against real servers are named `test_real_ASPECT.py`. Helpers of the tests lie beside them, or in `tests/kit`.
"""

from pathlib import Path, PurePath

import pytest

TESTS = Path(__file__).resolve().parents[1]
SOURCES = TESTS.parent / "mqbridge"
OTHER_FOLDERS = {
    "bench": "the programs of `make bench`",
    "chaos": "the programs of `make chaos` and `make soak`",
    "conformance": "one suite for every adapter",
    "deploy": "the images, the deployment files, and the configurations that the project ships",
    "docs": "the documentation and the files of the project",
    "e2e": "routes between real servers of several systems",
    "examples": "the example programs and the example adapter",
    "fuzz": "the programs of `make fuzz`",
    "log/faults": "the programs of `make log-faults`",
    "kit": "starts servers and runs programs for all tests, also for other projects",
    "native": "the compiled module",
    "quality": "the structure of the project, its types and its wheel, checked by `make check`",
    "sdk": "the official clients together with mqbridge, and as judges of its listeners",
}
"""Folders whose tests are about no single package."""


def names_in(package: Path) -> set[str]:
    """Return the names that test files of a package may have: its modules and subpackages, and its own."""
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    subpackages = {path.parent.name for path in package.glob("*/__init__.py")}
    return modules | subpackages | {package.name}


def problem_of(file: PurePath) -> str | None:
    """Say why a test file, as a path below `tests/`, has the wrong folder or name; None if it has the right ones."""
    if any(file.is_relative_to(folder) for folder in OTHER_FOLDERS):
        return None
    package = SOURCES / file.parent
    shown = package.relative_to(SOURCES.parent)
    if not (package / "__init__.py").is_file():
        return f"tests/{file}: there is no package {shown}"
    name = file.stem.removeprefix("test_")
    if name.startswith("real_") or any(name == known or name.startswith(f"{known}_") for known in names_in(package)):
        return None
    return f"tests/{file}: {name!r} does not begin with the name of a module or subpackage of {shown}"


def test_test_files_are_named_after_what_they_test() -> None:
    files = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    assert [problem for file in files if (problem := problem_of(file))] == []


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("net/test_budget.py", None),
        ("net/test_budget_fairness.py", None),
        ("net/test_tls.py", None),
        ("gateway/test_gateway_stopping.py", None),
        ("pulsar/test_real_cluster.py", None),
        ("kit/test_guard.py", None),
        ("core/test_budget.py", "there is no package mqbridge/core"),
        ("pulsar/test_budget.py", "'budget' does not begin with the name of a module or subpackage of mqbridge/pulsar"),
        ("net/test_budgets.py", "'budgets' does not begin with the name of a module or subpackage of mqbridge/net"),
        ("net/test_real.py", "'real' does not begin with the name of a module or subpackage of mqbridge/net"),
        ("test_budget.py", "'budget' does not begin with the name of a module or subpackage of mqbridge"),
    ],
)
def test_a_wrong_folder_or_name_is_reported(file: str, problem: str | None) -> None:
    assert problem_of(PurePath(file)) == (problem and f"tests/{file}: {problem}")


@pytest.mark.parametrize("folder", OTHER_FOLDERS)
def test_every_listed_folder_has_tests(folder: str) -> None:
    assert list((TESTS / folder).rglob("test_*.py"))
