from omni_cli.runtime.events import RequestFinished
from omni_cli.runtime.fanout import fanout

EVENT = RequestFinished(t_ns=1, uid=1)


def test_a_listener_that_raises_is_reported_once_dropped_and_breaks_nobody(caplog):
    heard = []
    calls = []

    def broken(source, event):
        calls.append(event)
        raise RuntimeError("no disk")

    hear = fanout(broken, lambda source, event: heard.append((source, event)))
    hear("omni", EVENT)
    hear("omni", EVENT)
    assert len(calls) == 1
    assert heard == [("omni", EVENT)] * 2
    assert sum("no disk" in record.getMessage() + str(record.exc_text) for record in caplog.records) == 1
