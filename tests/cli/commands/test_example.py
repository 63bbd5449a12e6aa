"""`mqbridge example`: every shipped configuration is listed with what it does, and is printed as it is."""

from pathlib import Path

import pytest

from mqbridge.config.shipped import shipped_configurations
from tests.cli.conftest import Invoke

FOLDER = Path(__file__).parents[3] / "mqbridge" / "shipped"


def test_the_list_has_every_file_with_its_first_sentence(invoke: Invoke) -> None:
    answer = invoke("example")
    assert answer.code == 0
    for path in FOLDER.glob("*.yaml"):
        sentence = path.read_text().partition("\n")[0].removeprefix("# ")
        assert f"{path.stem} {sentence}" in " ".join(answer.out.split())


@pytest.mark.parametrize("name", shipped_configurations())
def test_an_example_is_printed_as_it_is_and_passes_check(
    name: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRETS", str(tmp_path))
    answer = invoke("example", name)
    assert answer.code == 0
    assert answer.out == (FOLDER / f"{name}.yaml").read_text()
    if name != "locked":  # its certificates are not there
        (tmp_path / "gateway.yaml").write_text(answer.out)
        assert invoke("check", str(tmp_path / "gateway.yaml")).code == 0


def test_an_unknown_example_names_the_nearest_one(invoke: Invoke) -> None:
    answer = invoke("example", "tubemq-pulsar")
    assert answer.code == 2
    assert "there is no example 'tubemq-pulsar'. Did you mean 'tubemq-to-pulsar'?" in answer.err
