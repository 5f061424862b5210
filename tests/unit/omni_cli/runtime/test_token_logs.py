"""What a stage reports of its tokens is read back as it was."""

import pytest

from omni_cli.runtime.token_logs import TokenLog, token_logs
from stages.models.qwen3_omni.logprobs import TokenReport, log_payload


class Codec:
    def bytes_of(self, token: int) -> bytes:
        return {0: b"", 1: b" moon", 2: "é".encode()[:1]}[token]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_round_trip(count: int) -> None:
    told = [TokenReport(1, -0.5, ([1, 2], [-0.5, -1.5])), TokenReport(2, -2.0, ([0, 2], [-0.25, -2.0]))]
    found = list(token_logs([log_payload(told, Codec(), count), log_payload(told[:1], Codec(), count)]))
    moon = TokenLog(
        token=1,
        data=b" moon",
        logprob=-0.5,
        likely=(TokenLog(token=1, data=b" moon", logprob=-0.5), TokenLog(token=2, data=b"\xc3", logprob=-1.5))[:count],
    )
    half = TokenLog(
        token=2,
        data=b"\xc3",
        logprob=-2.0,
        likely=(TokenLog(token=0, data=b"", logprob=-0.25), TokenLog(token=2, data=b"\xc3", logprob=-2.0))[:count],
    )
    assert found == [moon, half, moon]
