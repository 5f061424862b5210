import pytest

from omni_cli.plan.spec import stage_spec, stage_specs
from tests.unit.omni_cli.plan.fakes import plan, plan_weights


def rings(specs, *, written):
    """The ring names of each edge, by who writes them or who reads them."""
    found = {}
    for spec in specs:
        for edge in spec.consumers if written else spec.inputs:
            found.setdefault((edge.producer, edge.consumer), set()).update(ring.segment for ring in edge.rings)
    return found


def test_a_consumer_reads_the_rings_that_the_replicas_of_its_producer_write():
    found = plan("deploy.stages.talker.devices=[[],[]]", "deploy.stages.code2wav.devices=[[],[],[]]")
    specs = stage_specs(found, "r1", media_bytes=10)
    assert [spec.process for spec in specs] == [
        "thinker.0", "talker.0", "talker.1", "code2wav.0", "code2wav.1", "code2wav.2",
    ]  # fmt: skip
    written, read = rings(specs, written=True), rings(specs, written=False)
    assert written["thinker", "talker"] == read["thinker", "talker"]
    assert written["talker", "code2wav"] == read["talker", "code2wav"]
    assert len(written["talker", "code2wav"]) == 2
    assert len(written["code2wav", "request"]) == 3
    names = [name for group in (written | read).values() for name in group]
    assert len(names) == len(set(names)) == 1 + 1 + 2 + 3
    assert all(name.startswith("omni-r1-") for name in names)


def test_ring_names_are_the_same_every_time_and_differ_between_runs():
    found = plan()
    assert stage_specs(found, "a", media_bytes=1) == stage_specs(found, "a", media_bytes=1)
    assert rings(stage_specs(found, "a"), written=True) != rings(stage_specs(found, "b"), written=True)


def test_ring_names_do_not_depend_on_whether_there_are_media():
    found = plan()
    assert rings(stage_specs(found, "a"), written=True) == rings(stage_specs(found, "a", media_bytes=1), written=True)


def test_the_media_edge_is_there_only_for_media_and_as_large_as_asked():
    found = plan()
    assert stage_spec(found, "thinker", 0, "r").inputs == ()
    (edge,) = stage_spec(found, "thinker", 0, "r", media_bytes=5000).inputs
    assert (edge.producer, edge.consumer, edge.mode) == ("request", "thinker", "complete")
    assert 5000 < edge.rings[0].data_bytes < 100_000
    assert edge.rings[0].key == "deploy.stages.thinker.inputs.request.ring_bytes"


def test_replicas_of_a_first_stage_share_the_media_ring():
    specs = stage_specs(plan("deploy.stages.thinker.devices=[[],[]]"), "r", media_bytes=1)
    assert specs[0].inputs == specs[1].inputs


def test_a_given_size_of_the_media_ring_stands():
    found = plan("deploy.stages.thinker.inputs.request.ring_bytes=65536")
    assert stage_spec(found, "thinker", 0, "r", media_bytes=5).inputs[0].rings[0].data_bytes == 65536


def test_settings_of_an_edge_reach_both_ends():
    found = plan(
        "deploy.stages.talker.inputs.thinker={slots: 3, ring_bytes: 8192}",
        "deploy.stages.code2wav.inputs.talker.connector=inline",
        "deploy.stages.code2wav.output={slots: 5}",
    )
    thinker, talker, code2wav = stage_specs(found, "r")
    assert thinker.consumers == talker.inputs
    (ring,) = talker.inputs[0].rings
    assert (ring.slots, ring.data_bytes, ring.key) == (3, 8192, "deploy.stages.talker.inputs.thinker.ring_bytes")
    assert talker.consumers == code2wav.inputs
    assert (talker.consumers[0].connector, talker.consumers[0].rings) == ("inline", ())
    assert code2wav.consumers[0].rings[0].slots == 5
    assert code2wav.consumers[0].rings[0].key == "deploy.stages.code2wav.output.ring_bytes"


def test_a_default_ring_holds_two_of_the_largest_payload():
    spec = stage_spec(plan_weights(), "talker", 0, "r")
    assert spec.inputs[0].rings[0].data_bytes == 2 * 100_000


def test_devices_are_physical_in_the_spec():
    found = plan_weights("deploy.stages.talker={devices: [[0],[1]], memory_fraction: 0.2}", gpus=2)
    assert stage_spec(found, "talker", 1, "r").devices == ("5",)
    assert stage_spec(plan(), "talker", 0, "r").devices == ()


@pytest.mark.parametrize(("outputs", "stages"), [(("text",), ["thinker"]), (None, ["thinker", "talker", "code2wav"])])
def test_a_pruned_stage_has_no_spec_and_no_edge(outputs, stages):
    specs = stage_specs(plan(outputs=outputs), "r")
    assert [spec.stage for spec in specs] == stages
    assert {edge.consumer for spec in specs for edge in spec.consumers} <= {*stages, "request"}


def test_the_rest_is_the_plan():
    words = ["model.path=/m", "model.load_format=dummy", "model.dtype=float16", "deploy.stages.talker.threads=3"]
    spec = stage_spec(plan_weights(*words), "talker", 0, "r9")
    assert (spec.model.path, spec.model.load_format, spec.model.dtype) == ("/m", "dummy", "float16")
    assert (spec.run_id, spec.generation, spec.threads) == ("r9", 0, 3)
    assert (spec.family, spec.execution_type, spec.outputs) == ("synthetic", "llm_ar", ())


def test_options_of_the_deployment_travel_with_the_spec():
    spec = stage_spec(plan("synthetic.init_delay_s.talker=2"), "talker", 0, "r")
    assert spec.options.init_delay_s.talker == 2
