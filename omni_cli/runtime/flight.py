"""What the orchestrator keeps of a request beside its state in the lifecycle tables, and asks of each stage."""

from dataclasses import dataclass, field

from omni_cli.runtime.request import OmniRequest
from omni_cli.runtime.router import Route
from stages.messages import Sampling, StageRequest, StreamMessage


@dataclass(slots=True)
class Flight:
    """A request in flight: what was asked for, and its way."""

    request: OmniRequest
    route: Route
    parked: dict[str, list[StreamMessage]] = field(default_factory=dict)  # by stage that it waits for
    given: dict[str, list[StreamMessage]] = field(default_factory=dict)  # by stage, what it can be given again
    deaths: dict[str, list[str]] = field(default_factory=dict)  # by stage, those after which it is run again
    crowded: set[str] = field(default_factory=set)  # stages whose input found no room to be kept

    def stage_request(self, uid: int, stage: str) -> StageRequest:
        """What one of its stages is asked to do."""
        request, way = self.request, self.route.stages[stage]
        return StageRequest(
            uid=uid,
            seed=request.seed,
            inputs=way.inputs,
            consumers=way.consumers,
            outputs=way.outputs,
            sampling=request.sampling.get(stage, Sampling()),
            conversation=request.conversation if stage in self.route.entries else (),
            voice=request.voice,
            choice=request.choice,
            image=request.image,
            options=request.options,
            tokenize=request.tokenize,
        )
