"""A family, a machine and a configuration to plan with, without files of a real family."""

from omni_cli.config.load import load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import Device, Inventory
from stages.models.registry import FamilyContract, InputContract, StageContract, contract

BOTH = InputContract(modes=("complete", "incremental"))
WHOLE = InputContract(modes=("complete",))


def machine(gpus: int) -> Inventory:
    """GPUs whose physical ids differ from their positions."""
    return Inventory(
        devices=tuple(Device(physical=str(i + 4), name="GPU", memory_bytes=80 << 30) for i in range(gpus)), note="test"
    )


def family(**changes) -> FamilyContract:
    """Like synthetic, but with weights: `thinker` needs three quarters of the memory."""
    fields = {
        "name": "synthetic",
        "stages": {
            "thinker": StageContract(execution_type="llm_ar", outputs=("text",), sampled=True, memory_share=6),
            "talker": StageContract(execution_type="llm_ar", inputs={"thinker": BOTH}, sampled=True),
            "code2wav": StageContract(
                execution_type="llm_generation", inputs={"talker": WHOLE}, outputs=("audio",), max_batch=16
            ),
        },
        "media": ("image",),
        "has_weights": True,
        "embedded": {"default": lambda: "/models/default", "other": lambda: "/models/other"},
        "check_model": lambda path, load_format: (),
        "voices": lambda path: ("ethan", "chelsie"),
        "edge_bytes": lambda path, producer, consumer: 100_000,
    }
    return FamilyContract(**{**fields, **changes})


def load(*words: str, contracts=contract):
    return load_config(("recipe=synthetic", *words), contracts=contracts)


def plan(*words: str, gpus: int = 0, contracts=contract, outputs=None):
    return build_plan(load(*words, contracts=contracts), machine(gpus), outputs)


def plan_weights(*words: str, gpus: int = 0, outputs=None, **changes):
    """Plans the family with weights instead of `synthetic`."""
    return plan(*words, gpus=gpus, contracts=lambda name: family(**changes), outputs=outputs)
