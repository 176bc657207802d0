import json

import pytest

from ranloom.federated import protocol
from ranloom.federated.protocol import ProtocolError, encode_message, parse, request_number
from tests.federated.builders import chunks_of, started, update

HEADER = vars(update("a")[0]).copy()


def test_requests_come_through():
    offer, frame = parse([encode_message("offer", 7, header=HEADER)], control=False)
    assert offer.header.header() == update("a")[0]
    assert (offer.request, frame) == (7, b"")
    chunk, frame = parse(
        [encode_message("chunk", 8, update_id="x", index=0), b"\x00\xff"], control=False
    )
    assert (chunk.kind, frame) == ("chunk", b"\x00\xff")


@pytest.mark.parametrize(
    ("frames", "control"),
    [
        ([], False),
        ([b"{}", b"", b""], False),
        ([b"not json"], False),
        ([b"\xff\xfe"], False),
        ([b"[]"], False),
        ([b"null"], False),
        ([b"[" * 100_000], False),
        ([b" " * (protocol.MAX_HEADER_BYTES + 1)], False),
        ([encode_message("offer", 1)], False),
        ([encode_message("offer", 1, header=HEADER | {"n_k": "5"})], False),
        ([encode_message("offer", 1, header=HEADER | {"n_k": 1.5})], False),
        ([encode_message("offer", 1, header=HEADER | {"n_k": 2**60})], False),
        ([encode_message("offer", 1, header=HEADER | {"more": 1})], False),
        ([encode_message("offer", 1, header=HEADER), b"frame"], False),
        ([encode_message("chunk", 1, update_id="", index=0)], False),
        ([encode_message("chunk", 1, update_id="x", index=-1)], False),
        ([encode_message("chunk", 1, update_id="x" * 129, index=0)], False),
        ([encode_message("describe", -1)], False),
        ([encode_message("describe", 1).replace(b'"version":1', b'"version":2')], False),
        ([encode_message("begin_round", 1, round=0, expected=[])], False),
        ([encode_message("status", 1)], False),
        ([encode_message("offer", 1, header=HEADER)], True),
        ([encode_message("begin_round", 1, round=0, expected=[1])], True),
        ([encode_message("no_such", 1)], True),
    ],
)
def test_everything_else_is_refused_in_one_line(frames, control):
    with pytest.raises(ProtocolError) as refused:
        parse(frames, control=control)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_the_number_of_a_bad_request_is_told_where_there_is_one():
    assert request_number([encode_message("no_such", 12)]) == 12
    for frames in ([], [b"x"], [b"[]"], [json.dumps({"request": True}).encode()]):
        assert request_number(frames) == -1


def test_hand_over_comes_through():
    machine = started("a")
    header, payload = update("a")
    machine.offer(header, 1.0)
    for index in (0, 3):
        machine.chunk(header.update_id, index, chunks_of(payload)[index], 2.0)
    context = machine.detach("a", 3.0, keep_chunks=True)
    document, frame = protocol.hand_over_document(context)
    message = encode_message("attach", 1, ue="a", context=document)
    attach, data = parse([message, frame], control=True)
    assert protocol.hand_over(attach.context, data) == context
    with pytest.raises(ProtocolError, match="attach"):
        protocol.hand_over(attach.context, data[:-1])
