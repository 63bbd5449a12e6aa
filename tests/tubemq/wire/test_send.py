"""The hand-written send request encoder produces the same bytes as protobuf."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B
from mqbridge.tubemq.wire.send import SendRequestEncoder

TEXT = st.none() | st.text(max_size=200)
SOME = st.tuples(st.binary(max_size=40) | st.sampled_from([127, 128, 16_384, 70_000]).map(bytes), st.integers(-1, 1 << 31 - 1))


@given(messages=st.lists(st.tuples(SOME, TEXT, TEXT), min_size=1, max_size=4), token=st.none() | st.integers(0, 1 << 62))
def test_encoded_requests_equal_those_of_protobuf(
    messages: list[tuple[tuple[bytes, int], str | None, str | None]], token: int | None
) -> None:
    encoder = SendRequestEncoder("client", "tøpic", 300, -1, -1073741310)
    info = None if token is None else AuthorizedInfo(visitAuthorizedToken=token)
    if info is not None:
        encoder.authorize(info)
    for (data, flag), msg_type, msg_time in messages:
        expected = SendMessageRequestP2B(
            clientId="client",
            topicName="tøpic",
            partitionId=300,
            data=data,
            flag=flag,
            checkSum=-1,
            sentAddr=-1073741310,
            msgType=msg_type,
            msgTime=msg_time,
            authInfo=info,
        )
        assert encoder.encode(data, flag, msg_type, msg_time) == expected.SerializeToString()


def test_the_encoder_does_not_keep_payloads_in_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    encoder, data = SendRequestEncoder("client", "topic", 0, -1, 1), bytes(10_000)
    before = resident()
    for _ in range(20_000):
        encoder.encode(data, 0, None, None)
    assert resident() - before < 50 << 20, "of 200 MB that went through it"
