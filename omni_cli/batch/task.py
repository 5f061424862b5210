"""One request of a run, from a line of input to what the engine takes. A line that is wrong is a task that failed.

It opens and decodes media; it starts nothing.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from omni_cli.config.load import LoadedConfig
from omni_cli.config.request import RequestLine
from omni_cli.config.sampling import SEEDS
from omni_cli.errors import InputError, OmniError
from omni_cli.inputs.conversation import Conversation, from_messages, from_prompt
from omni_cli.plan.admission import request_problems
from omni_cli.plan.drawing import content_problems, drawing, shows_previews
from omni_cli.plan.model import ExecutionPlan
from omni_cli.runtime.request import OmniRequest, draw_seed
from stages.messages import ImageParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request to be run, or what was wrong with it (`error`).

    `where` is where it stands (`batch.jsonl:3`), empty for the request of a command line. `digest` is the sha256 of
    what is asked, media included. `media_bytes` is the size of its decoded media. `keep` holds them; without it they
    are decoded again when its turn comes, so that a long batch does not fill the memory. `image` is what it draws.
    """

    request_id: str
    where: str = ""
    line: RequestLine | None = None
    outputs: tuple[str, ...] = ()
    digest: str = ""
    media_bytes: int = 0
    image: ImageParams | None = None
    notes: tuple[str, ...] = ()
    keep: Conversation | None = None
    error: OmniError | None = None

    def checked(self, plan: ExecutionPlan) -> "Task":
        """The same task, or a failed one if this plan cannot do what it asks for."""
        if self.line is None:
            return self
        talk = self.keep or (converse(self.line) if plan.image is not None else None)
        problems = request_problems(plan, self.line.request)
        if plan.image is not None and talk is not None:
            problems += tuple(content_problems(plan.image, talk.messages))
        if problems:
            return replace(self, error=InputError("\n".join(map(str, problems)), param=problems[0].key))
        if plan.image is None or talk is None:
            return self
        image, idle = drawing(plan.image, self.line.request.image, talk.media.tensors, previews=shows_previews(plan))
        return replace(self, image=image, notes=(*self.notes, *idle))

    def pictures(self, taken: set[str]) -> "tuple[Task, ...]":
        """A task for each picture that is asked for, each with the next seed; `taken` are the ids in use."""
        count = 1 if self.line is None else self.line.request.image.n or 1
        return (
            (self,)
            if self.line is None or count == 1
            else tuple(self._picture(self.line, at, taken) for at in range(count))
        )

    def _picture(self, line: RequestLine, index: int, taken: set[str]) -> "Task":
        request_id, seed = f"{self.request_id}-{index}", line.request.seed
        while request_id in taken:
            request_id += "-"
        taken.add(request_id)
        image = line.request.image.model_copy(update={"n": None})
        own = {"image": image, "seed": None if seed is None else (seed + index) % SEEDS}
        digest = hashlib.sha256(f"{self.digest} {index}".encode()).hexdigest()
        return replace(
            self, request_id=request_id, line=replace(line, request=line.request.model_copy(update=own)), digest=digest
        )

    @property
    def prompt(self) -> str:
        """The words of its first turn."""
        if self.line is None or self.line.messages is None:
            return "" if self.line is None else self.line.prompt or ""
        talk = self.keep or converse(self.line)
        return "".join(part.text for part in talk.messages[0].parts)

    def request(self) -> OmniRequest:
        """What the engine takes. Raises the task's own error, or InputError if its media cannot be read any more."""
        if self.error is not None or self.line is None:
            raise self.error or InputError(f"request {self.request_id}: holds nothing")
        settings = self.line.request
        talk = self.keep or converse(self.line)
        return OmniRequest(
            request_id=self.request_id,
            seed=draw_seed() if settings.seed is None else settings.seed,
            conversation=talk.messages,
            outputs=self.outputs,
            media=talk.media,
            sampling={stage: sampling.message() for stage, sampling in settings.sampling.items()},
            voice=settings.voice,
            timeout_s=settings.timeout_s,
            image=self.image,
            options=self.line.options,
        )


def make_task(line: RequestLine, loaded: LoadedConfig, *, request_id: str, where: str, keep: bool) -> Task:
    """Opens and decodes what the line names. Raises InputError."""
    outputs = wanted(line, loaded)
    talk = converse(line)
    foreign = talk.kinds - set(loaded.family.media)
    if foreign:
        takes = ", ".join(("text", *loaded.family.media))
        raise InputError(
            f"{', '.join(sorted(foreign))} cannot be read by family {loaded.family.name}, which takes {takes}"
        )
    return Task(
        request_id=request_id,
        where=where,
        line=line,
        outputs=outputs,
        digest=_digest(line, outputs, talk),
        media_bytes=sum(tensor.data.nbytes for tensor in talk.media.tensors),
        notes=tuple(f"{fact.label}: {note}" for fact in talk.facts for note in fact.notes),
        keep=talk if keep or not talk.media.tensors else None,
    )


def converse(line: RequestLine) -> Conversation:
    if line.messages is None:
        return from_prompt(line.prompt, images=line.images, audios=line.audios, videos=line.videos)
    if line.images or line.audios or line.videos:
        raise InputError("images, audios and videos go into the parts of `messages` when it is given", param="messages")
    return from_messages(line.messages)


def wanted(line: RequestLine, loaded: LoadedConfig) -> tuple[str, ...]:
    """The outputs that the request asks for; all that are deployed if it says nothing. Whether they can be had is the
    plan's business; InputError for what no plan has."""
    known, asked = tuple(loaded.config.pipeline.outputs), line.request.modalities
    for modality in asked or ():
        if modality not in known:
            raise InputError(
                f"modalities: pipeline {loaded.pipeline} has no output {modality!r}; it has {', '.join(known)}",
                param="modalities",
            )
    return (loaded.config.deploy.outputs or known) if asked is None else asked


def _digest(line: RequestLine, outputs: Sequence[str], talk: Conversation) -> str:
    asked = {
        "settings": line.request.model_dump(mode="json"),
        "options": asdict(line.options) if line.options is not None else None,
        "outputs": list(outputs),
        "messages": [asdict(message) for message in talk.messages],
        "media": [fact.sha256 for fact in talk.facts],
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
