"""`omni run`: from options to tasks, from a plan to running stages, from results to a run folder and an exit code."""

import typer

from omni_cli.batch.options import RunOptions

app = typer.Typer(add_completion=False)


@app.command()
def run(
    words: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="recipe=NAME, group choices and values; `omni plan --explain` lists them."
    ),
    prompt: str = typer.Option(None, "--prompt", help="The question, taken to the letter."),
    prompt_file: str = typer.Option(None, "--prompt-file", help="A UTF-8 file that holds it; - is stdin."),
    messages: str = typer.Option(
        None, "--messages", help="A JSON file with several turns, instead of a prompt; - is stdin."
    ),
    image: list[str] = typer.Option([], "--image", help="A picture, before the text; repeatable."),
    audio: list[str] = typer.Option([], "--audio", help="A sound file, before the text; repeatable."),
    video: list[str] = typer.Option([], "--video", help="A video, before the text; repeatable."),
    input_: str = typer.Option(None, "--input", help="A JSONL file, one request a line; - is stdin."),
    modalities: str = typer.Option(None, "--modalities", help="Outputs asked for, as `text,audio`."),
    voice: str = typer.Option(None, "--voice", help="The speaker."),
    seed: int = typer.Option(None, "--seed", help="Keys every random draw."),
    out: str = typer.Option(None, "--out", help="The run folder; must be absent or empty."),
    resume: str = typer.Option(None, "--resume", help="A run folder of the same command: do only what is missing."),
    multirun: bool = typer.Option(False, "-m", "--multirun", help="Sweep: a run for every combination of values."),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Only results, warnings and errors."),
) -> None:
    """Run requests through a pipeline of stage processes."""
    options = RunOptions(
        prompt=prompt,
        prompt_file=prompt_file,
        messages=messages,
        images=tuple(image),
        audios=tuple(audio),
        videos=tuple(video),
        input=input_,
        modalities=modalities,
        voice=voice,
        seed=seed,
        out=out,
        resume=resume,
        quiet=quiet,
    )
    if multirun:
        from omni_cli.batch.sweep import run_sweep

        code = run_sweep(tuple(words or ()), options)
    else:
        from omni_cli.batch.run import run_once

        code = run_once(tuple(words or ()), options)
    raise typer.Exit(code)
