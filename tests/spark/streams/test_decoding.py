"""Decoding of payloads, encoding of values, and separation of records that cannot be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mqbridge.spark.streams import decode, encode, split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAYLOADS = [b'{"name":"ann","age":3}', b'{"name":"bob"', b"\xff\xfe", None, b'{"name":"cid","age":"x"}', b'{"age":4}']


def decode_upper(payload: bytes) -> dict[str, Any]:
    """Return a name and an age; for the payload with "bob", an age of the wrong type."""
    text = payload.decode()
    return {"name": text.upper(), "age": len(text) if "bob" not in text else "no number"}


FIRST, LAST = PAYLOADS[0].decode(), PAYLOADS[4].decode()
# Arguments of `decode`, the expected values, and the ids of the records that cannot be decoded.
CASES = {
    "json": ("json", "name string, age int", [("ann", 3), None, None, None, None, (None, 4)], [1, 2, 4]),
    "string": ("string", None, [FIRST, '{"name":"bob"', None, None, LAST, '{"age":4}'], [2]),
    "function": (
        decode_upper, "name string, age int",
        [(FIRST.upper(), 22), None, None, None, (LAST.upper(), 24), ('{"AGE":4}', 9)], [1, 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_only_the_records_that_cannot_be_decoded_get_an_error(spark: SparkSession, case: str) -> None:
    how, schema, values, failed_ids = CASES[case]
    frame = spark.createDataFrame([(index, payload) for index, payload in enumerate(PAYLOADS)], "id int, payload binary")
    decoded = frame.transform(decode, how, schema).orderBy("id").collect()
    assert [row["value"] for row in decoded] == values
    assert [row["id"] for row in decoded if row["error"]] == failed_ids
    decoded_rows, failed_rows = split(frame.transform(decode, how, schema))
    assert "error" not in decoded_rows.columns
    assert {(row["id"], row["payload"]) for row in failed_rows.collect()} == {(index, PAYLOADS[index]) for index in failed_ids}


def test_decoding_json_without_a_schema_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs the schema"):
        decode(None, "json")  # type: ignore[arg-type]


def test_encode_replaces_columns_with_payload_and_key(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("ann", 3, "t1")], "name string, age int, topic string")
    assert frame.transform(encode, key="name").collect() == [(b'{"age":3}', b"ann", "t1")]
    assert frame.transform(encode, "string", value="age").collect() == [(b"3", "t1")]
    joined = frame.transform(encode, lambda name, age: f"{name}:{age}".encode(), value=["name", "age"], key="name")
    assert joined.collect() == [(b"ann:3", b"ann", "t1")]
    with pytest.raises(ValueError, match="nothing to encode"):
        encode(frame.select("topic"))
    with pytest.raises(ValueError, match="with one column"):
        encode(frame, "string", value=["name", "age"])
