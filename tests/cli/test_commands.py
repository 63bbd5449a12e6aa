"""Every command against embedded logs, in this process."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from mqbridge import native
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reader import PartitionReader
from mqbridge.adapter.registry import load_adapters
from mqbridge.cli.demo import run_demo
from mqbridge.config.cluster_choice import choose
from mqbridge.config.load import load
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.message import Batch, Message, Share
from tests.cli.conftest import Invoke

COMMANDS = ["quickstart", "run", "check", "explain", "schema", "topics", "groups", "offsets", "peek", "produce", "consume"]


@pytest.fixture
def orders(config: Path, invoke: Invoke) -> list[Any]:
    """Return options that name the source cluster; it has a topic `orders` with three partitions."""
    options = ["-F", config, "-b", "source"]
    assert invoke("topics", "orders", "--create", 3, *options).code == 0
    return options


def lines(data: str) -> list[Any]:
    return [orjson.loads(line) for line in data.splitlines()]


# --- help, check, schema ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(invoke: Invoke, name: str) -> None:
    answer = invoke(name, "--help")
    assert answer.code == 0
    assert f"mqbridge {name}" in answer.out.replace("mqbridge topics orders", "mqbridge topics")


def test_the_program_lists_its_commands_and_codes(invoke: Invoke) -> None:
    answer = invoke("--help")
    assert all(name in answer.out for name in COMMANDS)
    assert "Exit codes" in answer.out


def test_the_version(invoke: Invoke) -> None:
    assert invoke("--version").out.startswith("mqbridge ")


def test_the_schema_is_json(invoke: Invoke) -> None:
    assert invoke("schema").json["title"] == "mqbridge configuration"


def test_a_valid_configuration_has_no_problems(invoke: Invoke, config: Path) -> None:
    answer = invoke("check", config)
    expected = [native.notice] * (native.compiled is None) + [f"{config}: no problems (2 clusters, 1 route)"]
    assert (answer.code, answer.err.splitlines()) == (0, expected)
    assert "source/orders" in answer.out
    answer = invoke("check", config, "--json").json
    assert answer["ok"]
    assert answer["routes"][0]["from"] == {"cluster": "source", "topics": ["orders"], "group": "g"}


def test_check_reports_all_problems_with_their_lines(invoke: Invoke, config: Path) -> None:
    config.write_text(config.read_text().replace("cluster: target", "cluster: tagret").replace("name: copy", "nmae: copy"))
    answer = invoke("check", config)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines() == [
        f"error: {config}:5: routes[0].name: is missing. The route's name in metrics, logs and checkpoints; it must be unique",
        f"error: {config}:5: routes[0].nmae: there is no such key here. Did you mean 'name'?",
        f"error: {config}:7: routes[0].to.cluster: there is no cluster 'tagret'. Did you mean 'target'?",
        "3 problems",
    ]
    answer = invoke("check", config, "--json")
    assert answer.code == 2
    assert [(one["place"], one["path"]) for one in answer.json["problems"]][2] == (f"{config}:7", "routes[0].to.cluster")


def test_check_names_topics_that_a_pattern_matches_and_that_are_not_read(invoke: Invoke, config: Path, orders: list[Any]) -> None:
    delivery = "    delivery: {dead_letter: {cluster: source, topic: orders-dead}}\n"
    config.write_text(config.read_text().replace("topic: orders", "topic: '~orders.*'").replace("state:", f"{delivery}state:"))
    note = (
        "the topic source/orders-dead is not read, although a pattern matches it: it is the dead-letter topic of the route itself"
    )
    assert invoke("check", config, "--json").json["routes"][0]["notes"] == [note]
    assert f"route copy: {note}" in invoke("check", config).err
    assert invoke("topics", "orders-dead", "--create", 1, *orders).code == 0
    answer = invoke("check", config, "--connect", "--json").json["routes"][0]
    assert [topic["topic"] for topic in answer["topics"]] == ["orders"]
    assert answer["notes"][:2] == [
        note,
        "the topic source/orders-dead is not read: it is the dead-letter topic of the route itself",
    ]


def test_check_connects_to_the_clusters(invoke: Invoke, config: Path, orders: list[Any]) -> None:
    answer = invoke("check", config, "--connect", "--json")
    assert answer.code == 0
    assert [(one["name"], one["reachable"]) for one in answer.json["clusters"]] == [("source", True), ("target", True)]
    assert answer.json["routes"][0]["topics"] == [{"topic": "orders", "partitions": 3, "targets": ["orders-copy"]}]
    assert "3 partitions" in invoke("check", config, "--connect").out


def test_check_warns_of_settings_that_delete_messages(invoke: Invoke, config: Path, orders: list[Any]) -> None:
    config.write_text(config.read_text().replace("target.db'", "target.db', retention: 2h"))
    (warning,) = invoke("check", config, "--connect", "--json").json["routes"][0]["warnings"]
    assert warning.startswith("cluster target: orders-copy keeps messages for only 2 hours (retention=2h)")
    answer = invoke("check", config, "--connect")
    assert (answer.code, f"WARNING: route copy: {warning}" in answer.err) == (0, True)


def test_check_reports_a_missing_topic(invoke: Invoke, config: Path) -> None:
    answer = invoke("check", config, "--connect")
    assert answer.code == 3
    assert "route 'copy': the topic 'orders' does not exist in cluster 'source'" in answer.out


def test_check_reports_a_missing_state_folder(invoke: Invoke, config: Path, orders: list[Any], tmp_path: Path) -> None:
    """`run` creates no folders, because checkpoints under a misspelt path would be lost."""
    config.write_text(config.read_text().replace(f"{tmp_path}/state.db", f"{tmp_path}/nosuch/dir/x.db"))
    assert invoke("check", config).code == 0
    for command in (["check", config, "--connect"], ["run", config, "--until-idle", 0]):
        answer = invoke(*command)
        assert answer.code == 2
        assert f"state: the folder {tmp_path}/nosuch/dir does not exist" in answer.err
    assert not (tmp_path / "nosuch").exists()


def test_check_reports_an_unreachable_cluster(invoke: Invoke, config: Path, tmp_path: Path) -> None:
    (tmp_path / "target.db").write_bytes(b"this is no database" * 100)
    answer = invoke("check", config, "--connect", "--json")
    assert answer.code == 3
    assert [one["reachable"] for one in answer.json["clusters"]] == [True, False]
    assert answer.json["clusters"][1]["error"]


# --- topics, produce, consume, groups -----------------------------------------------------------------------------------


def test_topics_are_created_listed_and_described(invoke: Invoke, orders: list[Any]) -> None:
    assert invoke("topics", *orders, "--json").json == ["orders"]
    assert invoke("topics", *orders).out.split() == ["topic", "orders"]
    (topic,) = invoke("topics", "orders", *orders, "-J").json
    assert topic["partitions"] == [{"name": str(index), "first": "0", "next": "0", "messages": 0} for index in range(3)]
    assert topic["settings"]["retention"] == "7d"
    assert "retention" in invoke("topics", "orders", *orders).out
    missing = invoke("topics", "odrers", *orders)
    assert (missing.code, missing.out) == (3, "")
    assert "there is no topic 'odrers' in cluster 'source'" in missing.err
    assert invoke("topics", *orders, "--create", 3).code == 2


def test_produced_lines_are_consumed_as_messages(invoke: Invoke, orders: list[Any]) -> None:
    sent = invoke("produce", "-t", "orders", *orders, "--json", stdin="a\nb\n\nüber".encode())
    assert sent.json["stored"] == 4
    got = lines(invoke("consume", "-t", "orders", *orders, "-e", "--json").out)
    assert [one["payload"] for one in got] == ["a", "b", "", "über"]


def test_fields_of_the_command_line_are_produced(invoke: Invoke, orders: list[Any]) -> None:
    form = ["-K", ":", "-H", "a=1", "-H", "a=b=c", "-T", "paid", "--attributes", "x=y", "-p", 1, "-Z"]
    assert invoke("produce", "-t", "orders", *orders, *form, stdin=b"k:v:w\nnull:\nplain\n").code == 0
    got = lines(invoke("consume", "-t", "orders", *orders, "-e", "--json").out)
    assert [(one.get("key"), one["payload"]) for one in got] == [("k", "v:w"), ("null", None), (None, "plain")]
    assert got[0]["properties"] == [["a", "1"], ["a", "b=c"]]
    assert {(one["partition"], one["msg_type"], one["attributes"]) for one in got} == {("1", "paid", "x=y")}


def test_a_file_is_one_message_or_one_message_per_line(invoke: Invoke, orders: list[Any], tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\x00\xff\n2")
    (tmp_path / "two").write_bytes(b"x\ny\n")
    invoke("produce", "-t", "orders", "-p", 0, *orders, tmp_path / "one", tmp_path / "two")
    invoke("produce", "-t", "orders", "-p", 0, "-l", "-n", 2, *orders, tmp_path / "two")
    got = lines(invoke("consume", "-t", "orders", *orders, "-e", "--json").out)
    assert [one.get("payload_base64", one.get("payload")) for one in got] == ["AP8KMg==", "x\ny\n", "x", "x", "y", "y"]


def test_messages_of_one_key_stay_together(invoke: Invoke, orders: list[Any]) -> None:
    stdin = b"".join(b"k%d:%d\n" % (number % 5, number) for number in range(100))
    invoke("produce", "-t", "orders", "-K", ":", *orders, stdin=stdin)
    got = lines(invoke("consume", "-t", "orders", *orders, "-e", "--json").out)
    assert len(got) == 100
    assert len({(one["key"], one["partition"]) for one in got}) == 5
    for key in {one["key"] for one in got}:
        numbers = [int(one["payload"]) for one in got if one["key"] == key]
        assert numbers == sorted(numbers)


def test_a_refused_message_has_exit_code_4(invoke: Invoke, config: Path) -> None:
    target = ["-F", config, "-b", "target"]
    invoke("topics", "small", "--create", 1, *target)
    answer = invoke("produce", "-t", "small", *target, stdin=b"ok\n" + b"x" * 2000 + b"\n")
    assert answer.code == 4
    assert "1 messages stored" in answer.err
    assert "refused: " in answer.err


def test_consuming_without_a_group_moves_none(invoke: Invoke, orders: list[Any]) -> None:
    invoke("produce", "-t", "orders", "-p", 0, *orders, stdin=b"1\n2\n3\n4\n")
    assert invoke("consume", "-t", "orders", "-G", "g", "-e", "-c", 2, "-f", "%s,", *orders).out == "1,2,"
    before = invoke("groups", "orders", "-G", "g", "--json", *orders).json
    assert invoke("consume", "-t", "orders", "-e", "-f", "%s", *orders).out == "1234"
    assert invoke("groups", "orders", "-G", "g", "--json", *orders).json == before


def test_consuming_as_a_group_acknowledges_completely_shown_batches(invoke: Invoke, orders: list[Any]) -> None:
    invoke("produce", "-t", "orders", "-p", 0, *orders, stdin=b"1\n2\n3\n")
    assert invoke("consume", "-t", "orders", "-G", "g", "-e", "-c", 2, "-f", "%s", *orders).out == "12"
    # Only a part of the batch of three was shown, so the whole batch is delivered again.
    assert invoke("consume", "-t", "orders", "-G", "g", "-e", "-f", "%s", *orders).out == "123"
    assert invoke("consume", "-t", "orders", "-G", "g", "-e", "-f", "%s", *orders).out == ""
    rows = {row["partition"]: row for row in invoke("groups", "orders", "-G", "g", "--json", *orders).json}
    assert rows["0"] == {
        "group": "g",
        "partition": "0",
        "committed": "3",
        "next": "3",
        "lag": 0,
        "at_end": True,
        "member": None,
    }
    invoke("produce", "-t", "orders", "-p", 0, *orders, stdin=b"4\n5\n")
    assert "2" in invoke("groups", "orders", "-G", "g", *orders).out.splitlines()[1].split()[-1]
    assert invoke("consume", "-t", "orders", "-G", "g", "-o", "beginning", "-e", "-f", "%s", *orders).out == "12345"


def test_consume_starts_at_a_position(invoke: Invoke, orders: list[Any]) -> None:
    invoke("produce", "-t", "orders", "-p", 2, *orders, stdin=b"a\nb\nc\n")
    assert invoke("consume", "-t", "orders", "-p", 2, "-o", 1, "-e", "-f", "%o=%s ", *orders).out == "1=b 2=c "
    assert invoke("consume", "-t", "orders", "-o", "end", "-e", *orders).out == ""


def test_reading_ends_at_the_end_that_the_topic_had_at_the_start(
    invoke: Invoke, orders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LogCluster.reader

    async def growing(cluster: LogCluster, topic: str, partition: str, *arguments: Any, **options: Any) -> PartitionReader:
        """Open a reader as usual, which writes another message after every batch."""
        reader = await original(cluster, topic, partition, *arguments, **options)
        receive = reader.receive

        async def receive_and_write() -> Batch | None:
            if (batch := await receive()) is not None:
                outbound = await cluster.outbound(OutboundSpec(topic))
                await outbound.send(int(partition), Share(Batch.of([Message(b"later")])))
                await outbound.close()
            return batch

        monkeypatch.setattr(reader, "receive", receive_and_write)
        return reader

    invoke("produce", "-t", "orders", "-p", 1, *orders, stdin=b"a\nb\nc\n")
    monkeypatch.setattr(LogCluster, "reader", growing)
    assert invoke("consume", "-t", "orders", "-e", "-f", "%s ", *orders).out == "a b c "
    assert invoke("consume", "-t", "orders", "-p", 1, "-o", 2, "-e", "-f", "%s ", *orders).out == "c later "
    assert invoke("peek", "orders", "-o", 4, "-p", 1, "--json", *orders).out.count("later") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["consume", "-t", "orders", "-o", "stored"], "-o stored needs a group. Name it with -G"),
        (["consume", "-t", "orders", "-o", "yesterday"], "-o 'yesterday' is neither a position nor a time"),
        (["consume", "-t", "orders", "-o", "7"], "the position 7 needs one partition. Name it with -p"),
        (["consume", "-t", "orders", "-p", "9"], "'orders' has no partition 9. It has 0, 1, 2"),
        (["consume", "-t", "orders", "-f", "%q"], "uses %q"),
        (["consume", "-t", "orders", "-X", "none=1"], "-X none: there is no such setting. Known: none"),
        (["produce", "-t", "orders", "-p", "9"], "'orders' has no partition 9. It has 0, 1, 2"),
        (["produce", "-t", "orders", "-H", "novalue"], "-H 'novalue' is not a property. Write NAME=VALUE"),
    ],
)
def test_wrong_options_are_reported_with_a_hint(invoke: Invoke, orders: list[Any], arguments: list[str], expected: str) -> None:
    answer = invoke(*arguments, *orders, "-e") if arguments[0] == "consume" else invoke(*arguments, *orders)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert expected in answer.err


def test_settings_for_consuming_require_a_group(invoke: Invoke) -> None:
    answer = invoke("consume", "-t", "orders", "-X", "sql=a > 1", "--at", "rocketmq://127.0.0.1:1")
    assert (answer.code, answer.err) == (
        2,
        "error: -X sets how a member of a group consumes, and no group is given. Name the group with -G\n",
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "no cluster is named"),
        (["-F", "CONFIG"], "has 2 clusters. Add --cluster with one of source, target"),
        (["-F", "CONFIG", "-b", "tagret"], "has no cluster 'tagret'. Did you mean 'target'?"),
        (["-F", "CONFIG", "--at", "log:///x"], "two clusters are named"),
        (["--at", "plusar://x"], "'plusar://x' is not the URL of a known system. Did you mean 'pulsar://'?"),
        (["--at", "nonsense"], "is not a URL, and there is no file with profiles"),
    ],
)
def test_exactly_one_cluster_must_be_named(invoke: Invoke, config: Path, options: list[str], expected: str) -> None:
    answer = invoke("topics", *(str(config) if option == "CONFIG" else option for option in options))
    assert answer.code == 2
    assert expected in answer.err


def test_a_cluster_by_url(invoke: Invoke, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_adapters()["log"].cluster_model

    def from_url(url: str) -> Any:
        return model.model_validate({"path": url.removeprefix("log://")})

    monkeypatch.setattr(model, "from_url", from_url, raising=False)
    url = f"log://{tmp_path}/url.db"
    assert invoke("topics", "t", "--create", 1, "--at", url).code == 0
    assert invoke("topics", "--at", url, "--json").json == ["t"]
    assert (tmp_path / "url.db").exists()


def test_an_invalid_url_is_reported(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_adapters()["log"].cluster_model

    def from_url(url: str) -> Any:
        raise ValueError("a path is missing")

    monkeypatch.setattr(model, "from_url", from_url, raising=False)
    answer = invoke("topics", "--at", "log://")
    assert (answer.code, answer.err) == (2, "error: 'log://' cannot be used: a path is missing\n")


def test_the_only_cluster_needs_no_name(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(f"clusters: {{only: {{system: log, path: '{tmp_path}/x.db'}}}}")
    assert choose(file, None, None).name == "only"


# --- run ----------------------------------------------------------------------------------------------------------------


def test_run_until_idle(invoke: Invoke, config: Path, orders: list[Any]) -> None:
    invoke("produce", "-t", "orders", *orders, stdin=b"".join(b"%d\n" % number for number in range(300)))
    answer = invoke("run", config, "--until-idle", 0.3, "--json")
    assert answer.code == 0
    assert answer.json["clean"]
    assert [(one["name"], one["stored"], one["acknowledged"]) for one in answer.json["routes"]] == [("copy", 300, 300)]
    got = invoke("consume", "-t", "orders-copy", "-F", config, "-b", "target", "-e")
    assert sorted(map(int, got.out.split())) == list(range(300))


def test_run_stops_at_a_message_that_the_target_rejects(invoke: Invoke, config: Path, orders: list[Any]) -> None:
    invoke("produce", "-t", "orders", *orders, stdin=b"x" * 2000)
    answer = invoke("run", config, "--until-idle", 0.3)
    assert answer.code == 4
    assert "route copy stopped: " in answer.err


def test_run_without_its_source_topic_ends_with_an_error(invoke: Invoke, config: Path) -> None:
    answer = invoke("run", config, "--until-idle", 0.3)
    assert answer.code == 3
    assert "Traceback" not in answer.err


def test_expected_errors_have_tracebacks_with_debug(invoke: Invoke, config: Path) -> None:
    assert "Traceback" in invoke("--debug", "run", config, "--until-idle", 0.3).err


# --- quickstart ---------------------------------------------------------------------------------------------------------


def test_the_quickstart(invoke: Invoke) -> None:
    answer = invoke("quickstart", "--messages", 2003, "--partitions", 3, "--json")
    assert answer.code == 0
    assert answer.json["holds"]
    assert (answer.json["dead_letters"], answer.json["too_large"]) == (3, 3)
    assert sum(row["copied"] for row in answer.json["partitions"]) == 2003
    assert all(row["equal"] for row in answer.json["partitions"])


def test_the_quickstart_of_fewer_messages_than_partitions(invoke: Invoke) -> None:
    answer = invoke("quickstart", "-n", 1, "--partitions", 2)
    assert answer.code == 0
    assert "everything arrived, in order and unchanged" in answer.out


def test_a_quickstart_that_reads_its_copy_too_slowly_ends_with_an_error(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_demo, "VERIFY_TIMEOUT_S", 0.0)
    answer = invoke("quickstart", "-n", 10)
    assert (answer.code, answer.out) == (3, "")
    assert "0 of 10 copied messages could be read in 0 s" in answer.err


def test_a_kept_quickstart_can_be_continued(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "it's ${HERE}"
    answer = invoke("quickstart", "-n", 100, "--partitions", 2, "--keep", folder)
    assert answer.code == 0
    file = folder / "quickstart.yaml"
    assert load(file).routes[0].name == "orders"
    assert invoke("run", file, "--until-idle", 0.2).code == 0
    dead = lines(invoke("consume", "-F", file, "-b", "source", "-t", "orders-dead", "-e", "--json").out)
    assert {one["key"] for one in dead} == {"large-0", "large-1"}
    again = invoke("quickstart", "--keep", folder)
    assert again.code == 2
    assert "Choose another folder" in again.err


def test_the_quickstart_notices_a_difference(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqbridge.cli.demo import run_demo
    from mqbridge.gateway.clusters import connected_clusters

    bridge = run_demo._run_gateway

    async def tampered(config: Any, total: int, report: Any) -> Any:
        outcome = await bridge(config, total, report)
        async with connected_clusters(config) as clusters:
            outbound = await clusters["target"].outbound(OutboundSpec(run_demo.COPY_TOPIC))
            await outbound.send(0, Share(Batch.of([Message(b"one more")])))
            await outbound.close()
        return outcome

    monkeypatch.setattr(run_demo, "_run_gateway", tampered)
    answer = invoke("quickstart", "-n", 100, "--partitions", 2, "--json")
    assert answer.code == 4
    assert [row["equal"] for row in answer.json["partitions"]] == [False, True]
