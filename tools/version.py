"""Sets the version of mqbridge in every file that contains it, and in the changelog.

python -m tools.version                            prints the version; exits 1 if the files disagree
python -m tools.version 0.3.0                      begins a version: its section of the changelog is unreleased
python -m tools.version 0.3.0 --date 2026-11-28    the same for the commit of the release
"""

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = {
    "mqbridge/__init__.py": r'^__version__ = "(.*)"$',
    "native/Cargo.toml": r'^name = "mqbridge-native"\nversion = "(.*)"$',
    "native/Cargo.lock": r'^name = "mqbridge-native"\nversion = "(.*)"$',
    "deploy/kubernetes/mqbridge.yaml": r"image: mqbridge:(\S+)",
    "docs/how-to/install.md": r"mqbridge:(\d\S*)",
    "docs/how-to/compiled.md": r"^mqbridge (\d.*)$|mqbridge_native-(\d[^-]*)-",
}
"""By file: a pattern whose group is the version; it may match several times."""
CHANGELOG = "CHANGELOG.md"
SECTION = re.compile(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
"""Heading of a section of the changelog: the version, and the date of its release."""


def versions(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the versions that each file contains; the changelog counts with its newest section."""
    found = {
        name: {
            group for match in re.finditer(pattern, (root / name).read_text(), re.MULTILINE) for group in match.groups() if group
        }
        for name, pattern in PLACES.items()
    }
    newest = SECTION.search((root / CHANGELOG).read_text())
    return found | {CHANGELOG: set() if newest is None else {newest[1]}}


def set_version(version: str, released: str = "unreleased", root: Path = ROOT) -> None:
    """Write the version to every file. The newest section of the changelog gets it, unless that section is released."""
    for name, pattern in PLACES.items():
        path = root / name
        path.write_text(re.sub(pattern, lambda match: _with_version(match, version), path.read_text(), flags=re.MULTILINE))
    path = root / CHANGELOG
    text, heading = path.read_text(), f"## {version} ({released})"
    newest = SECTION.search(text)
    if newest is None:
        raise ValueError(f"{CHANGELOG} has no section such as {heading!r}")
    is_same_section = newest[2] == "unreleased" or newest[1] == version
    rest = text[newest.end() :] if is_same_section else "\n\n" + text[newest.start() :]
    path.write_text(text[: newest.start()] + heading + rest)


def _with_version(match: re.Match[str], version: str) -> str:
    """Return the text of a match with this version in place of its group."""
    group = match.lastindex or 1
    first, last = match.start(group) - match.start(), match.end(group) - match.start()
    return match[0][:first] + version + match[0][last:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or set the version; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.version", description="Prints or sets the version of mqbridge.")
    parser.add_argument("version", nargs="?", help="the version to set, such as 0.3.0; default: print the current one")
    parser.add_argument("--date", type=date.fromisoformat, help="the date of the release; default: unreleased")
    options = parser.parse_args(arguments)
    if options.version is not None:
        if not re.fullmatch(r"\d+\.\d+\.\d+", options.version):
            parser.error(f"{options.version!r} is not a version such as 0.3.0")
        set_version(options.version, "unreleased" if options.date is None else options.date.isoformat())
    found = versions()
    if len(names := set.union(*found.values())) == 1 and all(found.values()):
        print(*names)
        return 0
    print(
        "the versions differ: " + ", ".join(f"{name}: {' and '.join(sorted(each)) or 'none'}" for name, each in found.items()),
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
