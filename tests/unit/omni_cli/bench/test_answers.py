"""Ids and codes of answers, gathered from what crosses the edges, and whether they are another's."""

from array import array

from omni_cli.bench.compare import Answers
from omni_cli.runtime.events import CONTROL, RequestAdmitted
from stages.events import MessagePut
from stages.messages import StreamMessage
from stages.payload import PayloadRef, TensorSpec


def admit(answers, uid, request_id):
    event = RequestAdmitted(
        t_ns=0, uid=uid, request_id=request_id, seed=0, outputs=("text",), stages=("thinker",), timeout_s=None
    )
    answers(CONTROL, event)


def put(answers, uid, values, name="codes", inline=True):
    spec = TensorSpec(name=name, dtype="int32", shape=(len(values),), offset=0)
    data = array("i", values).tobytes()
    ref = PayloadRef(tensors=(spec,), meta=(), nbytes=len(data), inline=data if inline else None)
    message = StreamMessage(
        uid=uid, producer="talker", consumer="code2wav", seq=0, units=len(values), eos=False, ref=ref
    )
    answers("talker.0", MessagePut(uid=uid, t_ns=0, message=message))


def test_pieces_are_joined_and_held_against_the_answer_of_the_same_number():
    expected, found = Answers(""), Answers("0-")
    put(expected, 0, [1, 2, 3])
    put(expected, 1, [4, 5, 6])
    for uid, request_id in ((7, "1-0"), (8, "0-0"), (9, "0-1"), (10, "0-0"), (11, "0-2")):
        admit(found, uid, request_id)
    put(found, 7, [9])  # a warm-up: of another seed
    for value in (1, 2, 3):
        put(found, 8, [value])
    put(found, 9, [4, 5])  # one is missing
    put(found, 10, [1, 2, 3])
    put(found, 10, [8], name="prompt_ids")  # not of the answer
    put(found, 11, [1])  # nobody knows what this should be
    assert found.agreement(expected) == (2, 3)


def test_what_cannot_be_seen_is_not_compared():
    expected, found = Answers(""), Answers("0-")
    put(expected, 0, [1])
    admit(found, 1, "0-0")
    put(found, 1, [1], inline=False)
    assert found.agreement(expected) == (0, 0)
