"""Build wheels of the compiled module for all platforms that the installed Rust supports, and test the one for this machine.

python native/wheels.py [--out dist] [TARGET ...]

zig (from PyPI) links for all platforms. For Linux it links against glibc 2.17, so one wheel works with every distribution since
2014. If the installed Rust lacks the standard library of a target, the target is skipped, and the command that adds the library
is printed. The exit code is then 1 if the target was named on the command line.
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
    """Build the wheels. Return 1 if a wheel that was requested by name could not be built, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; default: all that the installed Rust supports"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheels (default dist)")
    arguments = parser.parse_args()
    targets = arguments.targets or list(TARGETS)
    supported = [target for target in targets if has_library(target)]
    for target in supported:
        build(target, arguments.out)
    missing = [target for target in targets if target not in supported]
    for target in missing:
        reason = f"the installed Rust has no standard library for {target}"
        print(f"==> no wheel for {TARGETS.get(target, target)}: {reason}. To add it: rustup target add {target}", flush=True)
    if any(target in supported for target in host_targets()):
        run_smoke_test(arguments.out)
    return int(bool(arguments.targets and missing))


def has_library(target: str) -> bool:
    """Return True if the installed Rust has the standard library of this target."""
    result = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", target], capture_output=True, text=True, check=False
    )
    return result.returncode == 0 and Path(result.stdout.strip()).is_dir()


def build(target: str, out: Path) -> None:
    """Build the wheel of one target."""
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
    # maturin finds zig in the virtual environment.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "VIRTUAL_ENV": sys.prefix}
    subprocess.run([*maturin, "--manifest-path", ROOT / "native" / "Cargo.toml", "--out", out], env=environ, check=True)


def host_targets() -> list[str]:
    """Return the targets whose wheels run on this machine."""
    machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    system = {"Linux": "unknown-linux-gnu", "Darwin": "apple-darwin"}.get(platform.system(), platform.system())
    return [f"{machine}-{system}"]


def run_smoke_test(out: Path) -> None:
    """Install mqbridge and the wheel for this machine into a new virtual environment, and run `smoke.py` there."""
    print("==> installing mqbridge and the wheel for this machine into an empty environment, to test them", flush=True)
    with tempfile.TemporaryDirectory(prefix="mqbridge-wheel-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "requirements.lock"]
        subprocess.run([*pip, ROOT], check=True, cwd=folder)
        subprocess.run([*pip, "--no-index", "--no-deps", "--find-links", out, "mqbridge-native"], check=True, cwd=folder)
        subprocess.run([python, "-W", "error", ROOT / "native" / "smoke.py"], check=True, cwd=folder)


if __name__ == "__main__":
    sys.exit(main())
