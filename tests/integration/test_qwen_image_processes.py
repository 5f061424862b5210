"""Text encoder, denoiser and VAE as three processes: pictures to the bit, whoever comes and goes beside them."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from omni_cli.runtime.events import ProcessStarted
from omni_cli.runtime.request import OmniRequest
from stages.config import ModelSpec
from stages.messages import ChatMessage, Part
from stages.models.cache import built_once
from stages.models.qwen_image import tiny
from stages.models.qwen_image.edit import QwenImageEditStepper
from stages.payload import Payload
from stages.runners.tensors import array_payload
from tests.integration.recorded import Moment, Recording, Session, plan_of, record
from tests.unit.stages.models.qwen_image.studio import Asked, Studio, gradient

REQUESTS, ROUNDS = 50, 2
SIZES = ((32, 48), (48, 32), (64, 32))
# a step has room for one request, so that nobody's rounding depends on company; sizes still take turns
WORDS = ("recipe=qwen_image_split", "model.path=tiny", "deploy.stages.denoiser.step_tokens=8")


def asked(number: int) -> Asked:
    draw = random.Random(f"picture {number}")
    return Asked(
        prompt=draw.choice(("a red boat", "two green fish at night", "snow")),
        size=draw.choice(SIZES),
        steps=draw.randint(1, 5),
        negative=draw.choice((None, None, "red")),
        seed=number,
    )


def request(number: int) -> OmniRequest:
    one = asked(number)
    turn = ChatMessage(role="user", parts=(Part(kind="text", text=one.prompt),))
    return OmniRequest(request_id=str(number), seed=one.seed, conversation=(turn,), outputs=("image",), image=one.image)


def after(events: int) -> Moment:
    """When so many events have told of the request, in whatever phase it is then."""
    left = events

    def moment(source: str, event: object, uid: int) -> bool:
        nonlocal left
        left -= uid == getattr(event, "uid", None) or uid in {row.uid for row in getattr(event, "rows", ())}
        return left <= 0

    return moment


def held(recording: Recording) -> dict[str, tuple[int, int]]:
    """Resident bytes and descriptors of each process."""
    found = {}
    for _, _, event in recording.of(ProcessStarted):
        pages = int(Path(f"/proc/{event.pid}/statm").read_text().split()[1])
        found[event.process] = pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{event.pid}/fd"))
    return found


@pytest.mark.usefixtures("warm")
def test_three_processes_draw_what_one_pipeline_draws_whoever_leaves() -> None:
    draw, plan, looks = random.Random(5), plan_of(*WORDS), []
    leaving = {str(number): draw.randint(1, 12) for number in range(REQUESTS * ROUNDS) if draw.random() < 0.4}

    async def act(session: Session) -> None:
        for turn in range(ROUNDS):
            numbers = range(turn * REQUESTS, (turn + 1) * REQUESTS)
            for name in map(str, numbers):
                if name in leaving:
                    session.cancel_at(name, after(leaving[name]))
            await session.all_of([request(number) for number in numbers])
            looks.append(held(session.recording))

    recording = record(plan, act)
    recording.check_ended_well()
    assert all(error.end.outcome == "cancelled" for error in recording.errors.values())
    assert leaving.keys() >= recording.errors.keys()
    assert len(recording.errors) > len(leaving) / 2
    studio = Studio(Path(plan.model.path))
    undisturbed = [number for number in range(REQUESTS * ROUNDS) if str(number) not in leaving]
    expected = studio.draw(*map(asked, undisturbed), max_batch=1).drawn.values()
    for number, drawn in zip(undisturbed, expected, strict=True):
        (payload,) = recording.outputs[str(number)]["image"].payloads
        assert np.frombuffer(payload.tensor("image").data, np.uint8).tobytes() == drawn.pixels.tobytes(), number
    first, last = looks
    for process, (rss, descriptors) in last.items():
        assert rss - first[process][0] <= 8 << 20, process
        assert descriptors == first[process][1], process


@pytest.mark.usefixtures("warm")
def test_three_processes_edit_what_one_pipeline_edits(tmp_path) -> None:
    kind = tiny.EDITS["tiny_edit_plus"]
    folder = built_once(tmp_path, kind, lambda folder: tiny.write(folder, kind))
    plan = plan_of("recipe=qwen_image_split", f"model.path={folder}", "deploy.stages.denoiser.step_tokens=8")
    wide, tall = gradient(90, 50), gradient(40, 77)
    asked = [Asked(edited=(wide, tall), negative="red", steps=3), Asked(edited=(tall,), size=(32, 48), seed=2)]

    def whole(number: int, one: Asked) -> OmniRequest:
        media = [array_payload(f"media{index}", picture) for index, picture in enumerate(one.edited)]
        parts = (*(Part(kind="image", media=each.name) for each in media), Part(kind="text", text=one.prompt))
        return OmniRequest(
            request_id=str(number), seed=one.seed, conversation=(ChatMessage(role="user", parts=parts),),
            media=Payload(tensors=tuple(media)), outputs=("image",), image=one.image,
        )  # fmt: skip

    recording = record(plan, lambda session: session.all_of(map(whole, range(2), asked)), media_bytes=1 << 20)
    recording.check_ended_well()
    studio = Studio(
        folder, stepper=QwenImageEditStepper(ModelSpec(path=str(folder), load_format="auto", dtype="float32"))
    )
    for number, one in enumerate(asked):
        (payload,) = recording.outputs[str(number)]["image"].payloads
        drawn = studio.draw(one).drawn[0]
        assert bytes(payload.tensor("image").data) == drawn.pixels.tobytes()
        assert payload.meta == drawn.payload.meta
