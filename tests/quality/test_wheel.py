"""The wheel of the project, built and installed."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_runs_from_an_installed_wheel(tmp_path: Path) -> None:
    """Build and install the wheel as `pipx install` does, but with the dependencies of this environment."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = tmp_path / "source"  # a copy: setuptools leaves a `build` folder, whose old files get into later wheels
    for name in ("mqbridge", "pyspark_mqbridge"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path / "dist"), str(source)], check=True)
    [wheel] = (tmp_path / "dist").glob("mqbridge-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import mqbridge; print(mqbridge.__file__); "
    program += "from mqbridge.cli.main import main; sys.argv = ['mqbridge', 'quickstart', '--messages', '2000']; main()"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
