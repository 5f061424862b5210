"""A device with too little left is refused before anything is loaded, with the numbers and the key."""

import pytest

from stages.config import ModelSpec, StageSpec
from stages.errors import StageError
from stages.runners.device import check_memory
from tests.unit.stages.models.qwen3_omni.test_bundled_config import FOLDER
from tests.unit.stages.models.qwen_image.test_bundled_config import FOLDER as PAINTER

GIB = 1 << 30


def spec(path: str, family: str = "qwen3_omni", stage: str = "talker") -> StageSpec:
    return StageSpec(
        run_id="test", family=family, stage=stage, replica=0, generation=0, execution_type="llm_ar",
        model=ModelSpec(path=path, load_format="dummy", dtype="bfloat16"), devices=("4", "6"), max_batch=1,
        memory_fraction=0.5, threads=1, inputs=(), consumers=(), outputs=(),
    )  # fmt: skip


def test_less_memory_than_weights_and_a_step_take_is_refused():
    message = r"stage talker needs 7\.\d GiB .* device 6 has 7\.0 of 80\.0 GiB free: .* deploy\.stages\.talker\.devices"
    with pytest.raises(StageError, match=message):
        check_memory(spec(str(FOLDER)), 1, 7 * GIB, 80 * GIB)
    check_memory(spec(str(FOLDER)), 1, 8 * GIB, 80 * GIB)


def test_the_second_device_of_a_painter_holds_the_transformer_alone():
    painter = spec(str(PAINTER), "qwen_image", "painter")
    with pytest.raises(StageError, match=r"needs 54\.7 GiB .* device 4 has 50\.0"):
        check_memory(painter, 0, 50 * GIB, 80 * GIB)
    check_memory(painter, 1, 50 * GIB, 80 * GIB)
    with pytest.raises(StageError, match=r"needs 39\.1 GiB .* device 6 has 30\.0"):
        check_memory(painter, 1, 30 * GIB, 80 * GIB)


def test_of_a_checkpoint_that_says_nothing_only_the_step_is_known():
    check_memory(spec("no/such/folder"), 0, GIB, GIB)
    with pytest.raises(StageError, match=r"needs 1\.0 GiB"):
        check_memory(spec("no/such/folder"), 0, GIB - 1, GIB)
