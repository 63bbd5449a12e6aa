"""Hypothesis strategy for damaged bytes: some are changed, removed or inserted."""

from hypothesis import strategies as st


def mutated(*originals: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy for one of the originals after one to four changes."""
    return st.builds(_apply, st.sampled_from(originals), st.lists(_CHANGES, min_size=1, max_size=4))


_CHANGES = st.tuples(
    st.sampled_from(["flip", "set", "cut", "insert", "truncate"]), st.floats(0, 1, exclude_max=True), st.integers(0, 255)
)


def _apply(data: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    for kind, fraction, value in changes:
        at = int(fraction * len(data))
        before, byte, after = data[:at], data[at : at + 1], data[at + 1 :]
        match kind:
            case "flip":
                data = before + bytes(one ^ (1 << value % 8) for one in byte) + after
            case "set":
                data = before + bytes([value]) + after
            case "cut":
                data = before + data[at + 1 + value % 9 :]
            case "insert":
                data = before + bytes([value]) * (1 + value % 5) + byte + after
            case "truncate":
                data = before
    return data
