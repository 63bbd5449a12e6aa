"""The deployment files agree with the code and with each other."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_deployment_files_name_a_configuration_and_variables_that_exist() -> None:
    known = set(re.findall(r"\$\{(\w+)", "".join(path.read_text() for path in (ROOT / "config").glob("*.yaml"))))
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]["mqbridge"]
    settings, deployment = yaml.safe_load_all((ROOT / "deploy/kubernetes/mqbridge.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert set(compose["environment"]) <= known
    assert set(settings["data"]) <= known
    for command in (compose["command"], container["args"]):
        assert (ROOT / "config" / Path(command[1]).name).exists()


@pytest.mark.parametrize("path", ["Dockerfile", "deploy/spark/Dockerfile"])
def test_images_copy_existing_files_and_build_the_compiled_module_with_their_own_python(path: str) -> None:
    """The stage that builds the compiled module has the same base image as the final stage: the same Debian and Python."""
    text = (ROOT / path).read_text().replace("\\\n", " ")
    bases: dict[str, str] = {}
    for line in text.splitlines():
        match line.split():
            case ["FROM", base, *named]:
                bases[named[-1] if named else ""] = base
            case ["COPY", source, *_] if source.startswith("--from="):
                assert source.removeprefix("--from=") in bases, line
            case ["COPY", *sources, _]:
                assert all((ROOT / source).exists() for source in sources), line
    assert bases["native"] == bases[""]
    assert re.search(r"^RUN .* pip wheel .* --wheel-dir /wheels \./native$", text, re.MULTILINE)
    installs = re.findall(r"^RUN .*pip install .*", text, re.MULTILINE)
    assert any(" /wheels/*.whl " in line and "assert native.compiled" in line for line in installs)
