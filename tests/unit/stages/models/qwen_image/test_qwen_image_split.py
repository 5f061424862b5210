"""Text encoder, denoiser and VAE as three stages draw what one stage draws, to the bit."""

from dataclasses import replace
from itertools import count

import pytest

from stages.config import EdgeSpec, ModelSpec, StageSpec
from stages.connectors.inline import InlineReader, InlineWriter
from stages.events import MessagePut, OutputProduced, StageFailed
from stages.messages import Deliver, StageRequest, Submit, Turn
from stages.models.qwen_image.contract import CONTRACTS
from stages.models.registry import build_runner
from stages.runners.tensors import from_payload
from stages.schedulers.registry import create_scheduler
from stages.worker.loop import StageWorker
from tests.unit.stages.models.qwen_image.studio import MEDIA, Asked, delivery, gradient

CHAIN = ("text_encoder", "denoiser", "vae")


def edge(index: int) -> tuple[EdgeSpec, ...]:
    """What leads into the stage of this number."""
    if not 0 < index < len(CHAIN):
        return ()
    producer, consumer = CHAIN[index - 1 : index + 1]
    return (EdgeSpec(producer=producer, consumer=consumer, mode="complete", connector="inline", rings=()),)


def worker(folder, index: int) -> StageWorker:
    name, contract = CHAIN[index], CONTRACTS["qwen_image"].stages[CHAIN[index]]
    spec = StageSpec(
        run_id="test", family="qwen_image", stage=name, replica=0, generation=0, execution_type=contract.execution_type,
        model=ModelSpec(path=str(folder), load_format="auto", dtype="float32"), devices=(), max_batch=4,
        memory_fraction=0.0, threads=1, inputs=edge(index) or (replace(MEDIA, consumer=name),),
        consumers=edge(index + 1), outputs=contract.outputs,
    )  # fmt: skip
    runner = build_runner(spec)
    runner.load()
    runner.warm_up()
    scheduler = create_scheduler(
        spec.execution_type, 4, denoising=runner.denoising, encodes=contract.encodes, decodes=contract.decodes
    )
    readers = {each.producer: InlineReader() for each in (*spec.inputs, MEDIA)}
    writers = {each.consumer: InlineWriter("") for each in spec.consumers}
    return StageWorker(spec, runner, scheduler, readers, writers, count().__next__)


class Chain:
    def __init__(self, folder):
        self.workers = [worker(folder, index) for index in range(3)]

    def draw(self, *asked: Asked):
        """The payload or the error of each, by uid. All are in flight at once."""
        for index, name in enumerate(CHAIN):
            for uid, one in enumerate(asked):
                whole = one.request(uid)
                request = StageRequest(
                    uid=uid, seed=whole.seed, image=whole.image, conversation=whole.conversation if index == 0 else (),
                    inputs=whole.inputs if index == 0 else (CHAIN[index - 1],),
                    consumers=tuple(each.consumer for each in edge(index + 1)),
                    outputs=("image",) if name == "vae" else (),
                )  # fmt: skip
                self.workers[index].apply(Turn(commands=(Submit(request=request),), sent_ns=0))
                if whole.inputs and index == 0:
                    deliver = delivery(uid, one.brings, "text_encoder")
                    self.workers[0].apply(Turn(commands=(deliver,), sent_ns=0))
        found = {}
        while any(self.pass_on(index, found) for index in range(3)):
            pass
        return found

    def pass_on(self, index: int, found: dict) -> bool:
        busy = self.workers[index].step()
        report = self.workers[index].take_report()
        for event in report.events if report else ():
            if isinstance(event, MessagePut):
                self.workers[index + 1].apply(Turn(commands=(Deliver(message=event.message),), sent_ns=0))
            elif isinstance(event, OutputProduced):
                found[event.uid] = InlineReader().get(event.ref)
            elif isinstance(event, StageFailed):
                found[event.uid] = event.error.message
        return busy


@pytest.fixture(scope="module")
def chain(tiny_folder):
    return Chain(tiny_folder)


def pixels(payload):
    return from_payload(payload.tensor("image")).numpy()


@pytest.mark.parametrize(
    "asked",
    [
        Asked(),
        Asked(negative="bad", scale=2.5, size=(32, 64)),
        Asked(steps=1, sigmas=(1.0, 0.4)),
        Asked(picture=gradient(40, 30), steps=5, seed=4),
        Asked(picture=gradient(40, 30), strength=1e-20),
    ],
)
def test_three_stages_draw_what_one_draws(chain, studio, asked):
    (payload,) = chain.draw(asked).values()
    assert (pixels(payload) == studio.draw(asked).drawn[0].pixels).all()


def test_several_at_once_and_two_that_cannot_be_drawn(chain, studio, monkeypatch):
    asked = [Asked(negative="", steps=5), Asked(prompt="sea " * 2000, steps=2), Asked(prompt="a" * 100_001)]
    asked.append(Asked(size=(32, 32), steps=2))
    stepper = chain.workers[2]._runner._stepper
    decode = stepper.decode
    monkeypatch.setattr(stepper, "decode", lambda image, given: decode(image, given) if image.width > 32 else 1 / 0)
    found = chain.draw(*asked)
    assert "100000 are read" in found[2]
    assert "division by zero" in found[3]
    assert "first 512 count" in found[1].scalar("warning")
    for uid in (0, 1):
        assert abs(pixels(found[uid]).astype(int) - studio.draw(asked[uid]).drawn[0].pixels).max() <= 1
