"""Java's hash of strings."""

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.wire.javahash import BLOCK, java_string_hash


@given(text=st.text(), more=st.integers(0, 3 * BLOCK))
def test_java_hashes_texts_of_every_length(text: str, more: int) -> None:
    text += "é" * more
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = 31 * value + low + 256 * high
    assert java_string_hash(text) % (1 << 32) == value % (1 << 32)
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31
