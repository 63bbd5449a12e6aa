"""Builds the wheels of the compiled module that the installed Rust can build, and tries the one for this machine.

python native/wheels.py [--out dist] [TARGET ...]

zig, from PyPI, links for all platforms: for Linux against glibc 2.17, so that one wheel does for every distribution since 2014.
A target that Rust has no standard library for is left out, with the command that adds it; asked for by name, it is an error.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {
    "x86_64-unknown-linux-gnu": "Linux x86-64",
    "aarch64-unknown-linux-gnu": "Linux aarch64",
    "aarch64-apple-darwin": "macOS arm64",
    "x86_64-apple-darwin": "macOS x86-64",
}


def main() -> int:
    """1 when something that should be there is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; default: all that can be built"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels go (default dist)")
    arguments = parser.parse_args()
    targets = arguments.targets or list(TARGETS)
    ready = [target for target in targets if has_library(target)]
    for target in ready:
        build(target, arguments.out)
    missing = [target for target in targets if target not in ready]
    for target in missing:
        reason = f"the installed Rust has no standard library for {target}"
        print(f"==> no wheel for {TARGETS.get(target, target)}: {reason}. To add it: rustup target add {target}", flush=True)
    if any(target in ready for target in host_targets()):
        try_in_empty_environment(arguments.out)
    return int(bool(arguments.targets and missing))


def has_library(target: str) -> bool:
    """Whether the installed Rust can build for it."""
    found = subprocess.run(["rustc", "--print", "target-libdir", "--target", target], capture_output=True, text=True, check=False)
    return found.returncode == 0 and Path(found.stdout.strip()).is_dir()


def build(target: str, out: Path) -> None:
    """One wheel."""
    print(f"==> {TARGETS.get(target, target)}", flush=True)
    maturin = [
        Path(sys.executable).with_name("maturin"),
        "build",
        "--quiet",
        "--release",
        "--locked",
        "--zig",
        "--target",
        target,
    ]
    # Of the virtual environment: where zig is found.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "VIRTUAL_ENV": sys.prefix}
    subprocess.run([*maturin, "--manifest-path", ROOT / "native" / "Cargo.toml", "--out", out], env=environ, check=True)


def host_targets() -> list[str]:
    """The targets whose wheels run here."""
    machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    system = {"Linux": "unknown-linux-gnu", "Darwin": "apple-darwin"}.get(platform.system(), platform.system())
    return [f"{machine}-{system}"]


def try_in_empty_environment(out: Path) -> None:
    """Install mqbridge and the wheel for this machine as a user would, and run them."""
    print("==> installing the wheel of this machine into an empty environment, with mqbridge", flush=True)
    with tempfile.TemporaryDirectory(prefix="mqbridge-wheel-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "requirements.lock"]
        subprocess.run([*pip, ROOT], check=True, cwd=folder)
        subprocess.run([*pip, "--no-index", "--no-deps", "--find-links", out, "mqbridge-native"], check=True, cwd=folder)
        subprocess.run([python, "-W", "error", ROOT / "native" / "smoke.py"], check=True, cwd=folder)


if __name__ == "__main__":
    sys.exit(main())
