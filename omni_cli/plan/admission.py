"""What a deployment cannot do for a request, said before the request goes anywhere."""

from omni_cli.config.nearest import nearest
from omni_cli.config.report import Problem
from omni_cli.config.schema import RequestConfig
from omni_cli.plan.drawing import drawing_problems
from omni_cli.plan.model import ExecutionPlan
from stages.models.registry import contract


def request_problems(plan: ExecutionPlan, request: RequestConfig, prefix: str = "") -> tuple[Problem, ...]:
    """Problems of a request's settings, each with its key behind `prefix` (`request.` for the configuration)."""
    problems = []
    if request.modalities is not None and not request.modalities:
        problems.append(Problem(key=f"{prefix}modalities", message=f"is empty; deployed are {', '.join(plan.outputs)}"))
    asked = request.modalities or ()
    twice = sorted({modality for modality in asked if asked.count(modality) > 1})
    problems += [Problem(key=f"{prefix}modalities", message=f"names {modality} twice") for modality in twice]
    for modality in asked:
        if modality not in plan.outputs:
            message = f"{modality} is not available in this deployment, which gives {', '.join(plan.outputs)}"
            problems.append(Problem(key=f"{prefix}modalities", message=f"{message} (deploy.outputs)"))
    if request.voice is not None and request.voice.lower() not in {voice.lower() for voice in plan.voices}:
        problems.append(Problem(key=f"{prefix}voice", message=_voice(request.voice, plan)))
    stages = contract(plan.family).stages
    for stage, sampling in request.sampling.items():
        if sampling.logprobs is not None and not stages[stage].logprobs:
            message = f"{stage} reports no log probabilities; leave it out"
            problems.append(Problem(key=f"{prefix}sampling.{stage}.logprobs", message=message))
        if sampling.stop and "text" not in stages[stage].outputs:
            message = f"{stage} writes no text that could end before a string; leave it out"
            problems.append(Problem(key=f"{prefix}sampling.{stage}.stop", message=message))
    return (*problems, *drawing_problems(plan, request.image, prefix))


def _voice(voice: str, plan: ExecutionPlan) -> str:
    if not plan.voices:
        return f"pipeline `{plan.pipeline}` has no voices to choose from; leave it out"
    close = nearest(voice, plan.voices)
    hint = f"; did you mean {close}" if close else ""
    return f"there is no speaker {voice!r}{hint}; there are {', '.join(plan.voices)}"
