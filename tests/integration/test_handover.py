"""Two processes hand tensors over and check them, as `omni bench overhead` has them on GPUs; here on the CPU."""

from omni_cli.bench.handover import hand_over, handover_specs
from omni_cli.config.load import load_config
from omni_cli.deployment import deployed
from omni_cli.launch.signals import Interrupts
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Inventory
from stages.runners.handover import Handover, run_handover


def test_each_tensor_is_taken_as_it_was_put_and_its_slot_comes_back():
    plan = build_plan(load_config(("recipe=synthetic",)), Inventory())
    work = Handover(sizes=(4096, 300_000), count=9, ahead=2)  # more than the ring has slots
    with (
        Interrupts() as interrupts,
        deployed(plan, interrupts, specs=handover_specs(plan, "shm", work), run_stage=run_handover) as deployment,
    ):
        giver, taker = deployment.running.replicas
        samples = list(hand_over(giver, taker, 2 * work.count))
        assert len(samples) == 18
        assert min(samples) > 0
    assert deployment.running.live_slots == 0
