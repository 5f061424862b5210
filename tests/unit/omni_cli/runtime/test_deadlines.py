"""The earliest deadline, whatever is set, replaced and taken back: held against a plain table."""

from hypothesis import given
from hypothesis import strategies as st

from omni_cli.runtime.deadlines import Deadlines

UIDS = st.integers(1, 5)
TIMES = st.integers(0, 50)
STEPS = st.one_of(
    st.tuples(st.just("set"), UIDS, TIMES),
    st.tuples(st.just("clear"), UIDS, st.none()),
    st.tuples(st.just("due"), st.none(), TIMES),
)


@given(st.lists(STEPS, max_size=40))
def test_deadlines_behave_like_a_table_that_is_searched(steps) -> None:
    deadlines, table = Deadlines(), {}
    for what, uid, at_ns in steps:
        if what == "set":
            deadlines.set(uid, at_ns)
            table[uid] = at_ns
        elif what == "clear":
            deadlines.clear(uid)
            table.pop(uid, None)
        else:
            due = deadlines.take_due(at_ns)
            assert sorted(due) == sorted(u for u, t in table.items() if t <= at_ns)
            assert [table[u] for u in due] == sorted(table[u] for u in due)
            for u in due:
                del table[u]
        assert deadlines.next_ns() == min(table.values(), default=None)


def test_what_was_taken_back_does_not_pile_up() -> None:
    deadlines = Deadlines()
    for uid in range(10_000):
        deadlines.set(uid, 1_000_000 + uid)
        deadlines.clear(uid)
    assert len(deadlines._heap) < 200
    assert deadlines.next_ns() is None
