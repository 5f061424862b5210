"""What cannot be measured is refused before anything is started."""

import pytest
from typer.testing import CliRunner

from omni_cli.bench.compare import comparable
from omni_cli.bench.prepared import Prepared
from omni_cli.bench.sized import SizedRequests
from omni_cli.bench.stage import StageBench
from omni_cli.commands.bench import app
from omni_cli.errors import ConfigError
from stages.models.registry import RequestSize


@pytest.mark.parametrize(
    ("recipe", "stage", "batch", "says"),
    [
        ("synthetic", "", 1, "--stage is missing: the plan has thinker, talker, code2wav"),
        ("synthetic", "taker", 1, "--stage taker: the plan has thinker, talker, code2wav"),
        ("synthetic", "talker", 1, "cannot feed `talker` alone"),
        ("synthetic", "thinker", 4000, "raise deploy.stages.thinker.max_batch"),
        ("qwen_image", "painter", 8, "raise deploy.stages.painter.step_tokens"),
        ("qwen_image_split", "text_encoder", 1, "text_encoder takes no steps"),
        ("qwen_image_split", "denoiser", 1, "cannot feed `denoiser` alone"),
    ],
)
def test_a_stage_alone(recipe: str, stage: str, batch: int, says: str) -> None:
    large = ["model.path=tiny", "request.image.size=2048x2048"] if recipe == "qwen_image" else []
    with pytest.raises(ConfigError, match=says):
        StageBench(
            prepared=Prepared.of([f"recipe={recipe}", *large], ""),
            name=stage,
            batches=(1, batch),
            context=1,
            steps=1,
            seed=0,
            bandwidth=0.0,
        )


def test_an_output_that_is_not_deployed() -> None:
    prepared = Prepared.of(["recipe=synthetic", "deploy.outputs=[audio]"], "")
    size = RequestSize(prompt_tokens=1, text_tokens=1, frames=1)
    with pytest.raises(ConfigError, match=r"text is not deployed; there is audio \(deploy.outputs\)"):
        SizedRequests.of(prepared.loaded, prepared.plan, size, 0, text_only=True)


def test_flop_are_not_counted_where_a_step_cache_skips_some() -> None:
    size = RequestSize(prompt_tokens=9, text_tokens=1, frames=1)
    for cache in ("none", "first_block"):
        prepared = Prepared.of(
            ["recipe=qwen_image", "model.path=tiny", f"deploy.stages.painter.step_cache={cache}"], ""
        )
        made = SizedRequests.of(prepared.loaded, prepared.plan, size, 0)
        assert (
            (made.step_flop is None) == any("TFLOP/s are left out" in note for note in made.notes) == (cache != "none")
        )


def test_who_names_no_recipe_is_told_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    Prepared.of(["pipeline=synthetic"], "")
    assert capsys.readouterr().err == "no recipe was given (recipe=NAME): this is pipeline synthetic\n"


def test_a_family_without_generate() -> None:
    with pytest.raises(ConfigError, match="`synthetic` has no `generate` to be compared with"):
        comparable(["recipe=synthetic"], "")


@pytest.mark.parametrize(
    "options",
    [
        ("run", "--peak", "1"),
        ("run", "recipe=qwen_image", "--frames", "1"),
        ("compare", "recipe=qwen_image", "--text-only"),
        ("run", "--rate", "1e30"),
        ("run", "--rate", ""),
        ("run", "--concurrency", ""),
        ("run", "--concurrency", "1000000"),
        ("run", "--frames", "1048576"),
        ("stage", "--stage", "thinker", "--batch", ""),
        ("compare", "--concurrency", ","),
        ("stage", "--stage", "thinker", "--bandwidth", "inf"),
        ("run", "--json", "absent/figures.json"),
        ("overhead", "--quick", "--write", "absent/page.md"),
    ],
)
def test_options_that_cannot_be_followed(options: tuple[str, ...]) -> None:
    words = [] if options[0] == "overhead" or "recipe=qwen_image" in options else ["recipe=synthetic"]
    result = CliRunner().invoke(app, [*options, *words])
    assert result.exit_code == 2
    assert "Invalid value" in result.output
