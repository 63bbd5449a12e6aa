"""The three clients have the same methods, arguments and example programs. Needs no cluster."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Unpack, get_origin

import pytest

import mqbridge
from mqbridge import PulsarClient, RocketMQClient, TubeMQClient
from mqbridge.errors import MqbridgeError
from mqbridge.library import contract
from mqbridge.library.opening import Opening

ROOT = Path(__file__).resolve().parents[2]
CLIENTS: dict[str, type[Any]] = {"pulsar": PulsarClient, "rocketmq": RocketMQClient, "tubemq": TubeMQClient}
KIND = inspect.Parameter


def opened_by(client: type[Any], method: str) -> type[Any]:
    """Return the class that a method opens: `Producer` for the return type `Opening[Producer]`."""
    returned = inspect.signature(getattr(client, method), eval_str=True).return_annotation
    assert returned.__origin__ is Opening
    found: type[Any] = returned.__args__[0]
    return found


def public_methods(of: type[Any]) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member, eval_str=True)
        for name, member in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def all_parts() -> list[tuple[str, type[Any], type[Any]]]:
    """Return the system, the class and the protocol that it implements, of every public class."""
    found: list[tuple[str, type[Any], type[Any]]] = []
    for name, client in CLIENTS.items():
        found.append((name, client, contract.Client))
        found.append((name, opened_by(client, "producer"), contract.Producer))
        found.append((name, opened_by(client, "consumer"), contract.Consumer))
    return found


@pytest.mark.parametrize(("name", "part", "protocol"), all_parts(), ids=lambda each: getattr(each, "__name__", each))
def test_every_client_implements_the_contract(name: str, part: type[Any], protocol: type[Any]) -> None:
    for method, wanted in public_methods(protocol).items():
        if method == "__init__":
            continue
        given = inspect.signature(getattr(part, method), eval_str=True).parameters
        for parameter in wanted.parameters.values():
            assert parameter.name in given, f"{part.__name__}.{method} lacks {parameter.name}"
            assert given[parameter.name].default == parameter.default, f"{part.__name__}.{method}: {parameter.name}"
    for name_ in ("__aenter__", "__aexit__"):
        assert hasattr(part, name_)


@pytest.mark.parametrize(("name", "part", "protocol"), all_parts(), ids=lambda each: getattr(each, "__name__", each))
def test_every_argument_is_named_and_typed(name: str, part: type[Any], protocol: type[Any]) -> None:
    for method, signature in public_methods(part).items():
        for parameter in list(signature.parameters.values())[1:]:
            where = f"{part.__name__}.{method}: {parameter}"
            assert parameter.annotation not in (Any, KIND.empty), where
            if parameter.kind is KIND.VAR_KEYWORD:  # a table of typed arguments that several methods share
                assert get_origin(parameter.annotation) is Unpack, where
            elif parameter.name != "_":
                assert parameter.kind is not KIND.VAR_POSITIONAL, where


def test_the_hello_worlds_differ_only_in_class_and_address() -> None:
    texts = {name: (ROOT / "examples" / name / "hello.py").read_text() for name in CLIENTS}

    def neutral(name: str) -> str:
        text = texts[name].replace(CLIENTS[name].__name__, "Client")
        text = re.sub(rf"{name}://[\w.:]+", "URL", text)
        text = re.sub(r"(?i)\b(apache )?(pulsar|rocketmq|tubemq)\b", "SYSTEM", text)
        return re.sub(r":\d{4}\b", ":PORT", text)

    assert neutral("pulsar") == neutral("rocketmq") == neutral("tubemq")


def test_the_clients_are_imported_on_first_use() -> None:
    """Every command imports `mqbridge`, so the import must not load the clients."""
    program = "import sys, mqbridge; print([name for name in sys.modules if name.startswith('mqbridge.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
    assert {"PulsarClient", "RocketMQClient", "TubeMQClient"} <= set(dir(mqbridge))
    with pytest.raises(AttributeError, match="KafkaClient"):
        mqbridge.KafkaClient  # noqa: B018


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "url", ["kafka://localhost:9092", "localhost:6650", "", "{}://", "{}://user:pass@localhost", "{}://host:port"]
)
def test_a_constructor_refuses_an_invalid_url(name: str, url: str) -> None:
    with pytest.raises(MqbridgeError, match=f"{name}://"):
        CLIENTS[name](url.format(name))
