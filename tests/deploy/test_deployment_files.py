"""The deployment files agree with the code and with each other."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_deployment_files_name_a_configuration_and_variables_that_exist() -> None:
    known = set(re.findall(r"\$\{(\w+)", "".join(path.read_text() for path in (ROOT / "mqbridge" / "shipped").glob("*.yaml"))))
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]["mqbridge"]
    settings, deployment = yaml.safe_load_all((ROOT / "deploy/kubernetes/mqbridge.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert set(compose["environment"]) <= known
    assert set(settings["data"]) <= known
    for command in (compose["command"], container["args"]):
        assert (ROOT / "mqbridge" / "shipped" / Path(command[1]).name).exists()
