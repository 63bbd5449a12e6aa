"""What the README and the deployment files show is true of the code."""

import re
from pathlib import Path

import pytest
import yaml

from mqbridge.config.load import parse

ROOT = Path(__file__).resolve().parents[2]


def test_the_configuration_in_the_readme_loads() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    config = parse(text, "README.md", environ={})
    assert [route.name for route in config.routes] == ["orders"]


def test_the_configurations_in_the_reference_load() -> None:
    texts = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/configuration.md").read_text(), flags=re.DOTALL)
    small, large = (parse(text, "configuration.md", environ={}) for text in texts)
    assert [route.name for route in small.routes] == ["orders"]
    assert [target.partitions.by for target in large.routes[0].targets] == ["key", "identity"]


def test_links_of_the_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


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
def test_the_images_are_made_of_what_is_there_with_the_compiled_module_of_their_own_python(path: str) -> None:
    """A distribution's module runs where it was built: on the same Debian and Python."""
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
