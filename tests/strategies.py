"""Hypothesis strategies for messages; shared by the mapping tests of every system."""

from hypothesis import strategies as st

from mqbridge.message import Message

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.one_of(
    text,
    st.sampled_from(["a", "$msgType$", "$msgTime$", "mqbridge.key", "mqbridge.u.x", "mqbridge.zzz", "k=v", "a,b", "100%", " "]),
)
pairs = st.tuples(names, text)
ms = st.integers(min_value=0, max_value=(1 << 62))


def messages(**fixed: object) -> st.SearchStrategy[Message]:
    """Messages with any combination of fields; `fixed` replaces a field's strategy."""
    fields: dict[str, object] = {
        "payload": st.one_of(st.none(), st.binary(max_size=40)),
        "properties": st.lists(pairs, max_size=5).map(tuple),
        "key": st.one_of(st.none(), text, st.binary(max_size=8)),
        "ordering_key": st.one_of(st.none(), st.binary(min_size=1, max_size=8)),
        "keys": st.lists(text, max_size=3).map(tuple),
        "event_time": st.one_of(st.none(), ms),
        "deliver_at": st.one_of(st.none(), ms),
    }
    return st.builds(Message, **(fields | fixed))  # type: ignore[arg-type]


CARRIED = ("payload", "properties", "key", "ordering_key", "keys", "msg_type", "attributes", "event_time", "deliver_at")


def said(message: Message) -> dict[str, object]:
    """What a message says, without where it is: what a round trip must keep."""
    return {field: getattr(message, field) for field in CARRIED}
