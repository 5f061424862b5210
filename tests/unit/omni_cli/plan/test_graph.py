import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.config.schema import PipelineConfig
from omni_cli.plan.graph import check_topology, deployed
from stages.models.registry import FamilyContract, InputContract, StageContract
from tests.unit.omni_cli.plan.fakes import BOTH, WHOLE

TEXT_AUDIO = {"text": "thinker", "audio": "code2wav"}


def stage(*inputs: str, mode="complete", kind="llm_ar"):
    return {"execution_type": kind, "inputs": dict.fromkeys(inputs, mode)}


LINE = {"thinker": stage(), "talker": stage("thinker"), "code2wav": stage("talker", kind="llm_generation")}


def contract(**stages) -> FamilyContract:
    line = {
        "thinker": StageContract(execution_type="llm_ar", outputs=("text",)),
        "talker": StageContract(execution_type="llm_ar", inputs={"thinker": BOTH}),
        "code2wav": StageContract(execution_type="llm_generation", inputs={"talker": WHOLE}, outputs=("audio",)),
    }
    return FamilyContract(name="test", stages={**line, **stages}, media=(), has_weights=False)


def problems(stages, outputs=TEXT_AUDIO, **contracts) -> list[str]:
    pipeline = PipelineConfig.model_validate({"family": "test", "stages": stages, "outputs": outputs})
    return [str(problem) for problem in check_topology(pipeline, contract(**contracts))]


def test_a_legal_topology_has_no_problem():
    assert problems(LINE) == []
    assert problems({**LINE, "talker": stage("thinker", mode="incremental")}) == []
    assert problems({"thinker": stage()}, {"text": "thinker"}) == []


@pytest.mark.parametrize(
    ("stages", "outputs", "message"),
    [
        ({**LINE, "singer": stage()}, TEXT_AUDIO, "pipeline.stages.singer: family `test` has no such stage"),
        (
            {**LINE, "talker": stage("thinker", kind="diffusion")},
            TEXT_AUDIO,
            "is llm_ar in family `test`, not diffusion",
        ),
        ({**LINE, "talker": stage()}, TEXT_AUDIO, "pipeline.stages.talker.inputs: the stage has no input"),
        (
            {**LINE, "code2wav": stage("thinker", kind="llm_generation")},
            TEXT_AUDIO,
            "`code2wav` cannot be fed by `thinker`",
        ),
        (
            {k: LINE[k] for k in ("talker", "code2wav")},
            {"audio": "code2wav"},
            "has no stage `thinker`, which feeds `talker`",
        ),
        (
            {**LINE, "code2wav": stage("talker", mode="incremental", kind="llm_generation")},
            TEXT_AUDIO,
            "pipeline.stages.code2wav.inputs.talker: is incremental, but `code2wav` must have the complete input",
        ),
        (LINE, {}, "pipeline.outputs: is empty"),
        (
            LINE,
            {"text": "thinker", "audio": "code2wave"},
            "the pipeline has no stage `code2wave`; did you mean `code2wav`",
        ),
        (LINE, {"text": "thinker", "audio": "talker"}, "`talker` does not give audio; it gives no final output"),
        (LINE, {"text": "thinker", "sound": "code2wav"}, "`code2wav` does not give sound; it gives audio"),
        (LINE, {"text": "thinker"}, "pipeline.stages.code2wav: reaches no final output"),
        (LINE, {"text": "thinker"}, "pipeline.stages.talker: reaches no final output"),
    ],
)
def test_an_illegal_topology_is_named_with_its_key(stages, outputs, message):
    assert any(message in problem for problem in problems(stages, outputs))


def test_a_circle_is_shown():
    loop = StageContract(execution_type="llm_ar", inputs={"thinker": BOTH, "talker": BOTH})
    stages = {**LINE, "thinker": stage("talker")}
    (problem,) = [p for p in problems(stages, thinker=loop) if "circle" in p]
    assert "thinker -> talker -> thinker" in problem or "talker -> thinker -> talker" in problem
    assert problem.startswith("pipeline.stages.")


def test_a_stage_that_feeds_itself():
    loop = StageContract(execution_type="llm_ar", inputs={"talker": BOTH, "thinker": BOTH})
    assert any(
        "circle: talker -> talker" in p for p in problems({**LINE, "talker": stage("thinker", "talker")}, talker=loop)
    )


def test_an_incremental_edge_needs_a_producer_that_streams():
    mute = StageContract(execution_type="llm_ar", outputs=("text",), streams=False)
    found = problems({**LINE, "talker": stage("thinker", mode="incremental")}, thinker=mute)
    (problem,) = found
    assert problem.startswith("pipeline.stages.talker.inputs.thinker: is incremental, but `thinker` cannot emit")


def test_a_mode_that_is_not_offered():
    eager = StageContract(execution_type="llm_ar", inputs={"thinker": InputContract(modes=("incremental",))})
    assert "cannot wait for the complete input" in problems(LINE, talker=eager)[0]


def test_all_problems_at_once():
    assert len(problems({**LINE, "talker": stage(kind="diffusion")}, {"text": "talker"})) >= 4


@st.composite
def graphs(draw):
    """A DAG over s0..sn in which every stage may have an output, and which of the outputs are deployed."""
    count = draw(st.integers(1, 7))
    names = draw(st.permutations([f"s{i}" for i in range(count)]))
    rank = {name: i for i, name in enumerate(names)}
    inputs = {n: draw(st.sets(st.sampled_from(sorted(set(rank) - {n}) or [n]))) for n in rank}
    stages = {f"s{i}": stage(*sorted(p for p in inputs[f"s{i}"] if rank[p] < rank[f"s{i}"])) for i in range(count)}
    outputs = {f"o{name}": name for name in stages}
    chosen = draw(st.sets(st.sampled_from(sorted(outputs)), min_size=1))
    return PipelineConfig.model_validate({"family": "f", "stages": stages, "outputs": outputs}), chosen


@given(graphs())
def test_deployed_is_exactly_what_the_chosen_outputs_need_in_order(case):
    pipeline, chosen = case
    graph = deployed(pipeline, chosen)
    assert set(graph.outputs) == chosen
    place = {name: index for index, name in enumerate(graph.stages)}
    feeds = {producer for name in graph.stages for producer in pipeline.stages[name].inputs}
    for name in graph.stages:
        assert all(place[producer] < place[name] for producer in pipeline.stages[name].inputs)
        assert name in feeds or name in graph.outputs.values()
    assert set(graph.outputs.values()) <= set(place)
