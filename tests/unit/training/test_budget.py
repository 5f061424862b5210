"""Training by seconds: at least one step, a rate that rises over steps and falls over time."""

from training.budget import Moment, moments


def test_steps_go_on_until_the_time_is_up():
    clock = iter(range(100))
    steps = list(moments(4.0, lambda: next(clock)))
    assert [moment.step for moment in steps] == [0, 1, 2, 3]
    assert [moment.done for moment in steps] == [0.0, 0.25, 0.5, 0.75]
    assert len(list(moments(0.001, iter(range(100)).__next__))) == 1


def test_it_is_said_and_kept_by_the_clock():
    clock = iter(range(0, 1000, 4))
    steps = list(moments(130.0, lambda: next(clock)))
    assert [4 * moment.step for moment in steps if moment.told][:4] == [0, 12, 20, 32]
    assert [4 * moment.step for moment in steps if moment.kept] == [60, 120]


def test_the_rate_rises_then_stays_then_falls():
    def rate(step, done):
        return Moment(step=step, done=done).rate(1.0, warm_steps=10, flat=0.5)

    assert rate(0, 0.0) == 0.1
    assert rate(9, 0.1) == rate(500, 0.49) == 1.0
    assert rate(500, 0.75) == 0.5
    assert rate(500, 1.0) == 0.02
