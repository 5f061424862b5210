import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_cli.app import VERBS

ROOT = Path(__file__).parents[3]
C_LOCALE = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def omni(*args: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ}
    command = [sys.executable, "-m", "omni_cli", *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=60)


def run_main(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


# A verb of the test's own, so that every ending can be tried.
VERB = """
import sys, types, typer
from omni_cli import app, errors
verb = types.ModuleType("act")
verb.app = typer.Typer()
@verb.app.command()
def act():
    {act}
sys.modules["omni_cli.commands.act"] = verb
app.VERBS["act"] = "x"
app.available_verbs = lambda: ["act"]
app.main(["act"])
"""


def ending(act: str) -> subprocess.CompletedProcess[str]:
    return run_main(VERB.format(act=act))


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom omni_cli.app import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'hydra', 'omegaconf', 'transformers', 'pydantic', 'numpy', 'fastapi', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = run_main(code)
    assert done.returncode == 0, done.stderr
    assert "plan" in done.stdout


def test_help_lists_the_verbs_that_are_there():
    text = omni("--help").stdout.decode()
    for name in VERBS:
        there = (ROOT / f"omni_cli/commands/{name}.py").exists()
        assert (f"│ {name} " in text) == there


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise errors.ConfigError('a.b: wrong')", 2, "omni: a.b: wrong\n"),
        ("raise errors.PlanError('no device 3')", 2, "omni: no device 3\n"),
        ("raise errors.InputError('empty')", 2, "omni: empty\n"),
        ("raise errors.LaunchError('talker.0 died')", 1, "omni: talker.0 died\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 130, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, ""),
        ("raise typer.Exit(1)", 1, ""),
        ("raise ZeroDivisionError('x')", 1, "internal error: ZeroDivisionError: x"),
    ],
)
def test_each_ending_has_its_code_and_never_a_traceback(act, code, said):
    done = ending(act)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_clean_up_runs_on_sigterm():
    done = ending(
        "\n    ".join(["import os, signal", "try: os.kill(os.getpid(), signal.SIGTERM)", "finally: print('clean')"])
    )
    assert (done.returncode, done.stdout) == (143, "clean\n")


def test_a_traceback_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("OMNI_TRACEBACK", "1")
    assert "Traceback" in ending("raise ZeroDivisionError('x')").stderr
    done = ending("raise errors.TraceError('line 3') from KeyError('talker')")
    assert (done.returncode, "KeyError: 'talker'" in done.stderr) == (2, True)


def test_a_reader_that_leaves_is_no_failure():
    command = f"{sys.executable} -m omni_cli plan recipe=synthetic --json | head -1"
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, status = done.stdout.split("\n")[:2]
    assert (first, done.stderr) == ("{", "")
    assert status in ("0", "141")  # 0 if all was written before `head` left


@pytest.mark.parametrize(
    "args",
    [
        ["plan", "recipe=synthetic", "requst.prompt=hi"],
        ["plan", "recipe=synthetic", "+requst.prompt=hi"],
    ],
)
def test_a_mistyped_prompt_key_points_to_the_option(args):
    done = omni(*args)
    assert done.returncode == 2
    assert b"request.prompt" in done.stderr
    assert b"--prompt" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["plan", "recipe=synthetic", "hydra.jbo.chdir=true"], b"refused"),
        (["plan", "recipe=synthetic", "+hydra.job.foo=1"], b"refused"),
        (["plan", "recipe=synthetic", "request.seed=1", "request.seed=2"], b"set twice"),
        (["plan", "recipe=synthetic", "request.sed=5"], b"request.seed"),
        (["plan", "recipe=synthetic", "deploy.stages.talker.devices=[[64]]"], b"there is no device 64"),
        (["plan", "recipe=qwen3_omni", "model.path=./nowhere"], str(ROOT / "nowhere").encode()),
        (["plan", "--jsn"], b"No such option"),
        (["serve", "--port", "8000"], b"no such option: --port; a value is written serve.port=..."),
        (["run", "--recipe=synthetic"], b"a value is written recipe=..."),
        (["run", "--model", "./folder"], b"model.path=..."),
        (["run", "--max-new-tokens", "5"], b"request.sampling.thinker.max_tokens=..."),
        (["plam"], b"No such command 'plam'. Did you mean 'plan'"),
        (["recipe", "show", "synthetc"], b"synthetic"),
    ],
)
def test_refusals_end_with_2_and_a_hint(args, said):
    done = omni(*args)
    assert done.returncode == 2
    assert said in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_utf8_whatever_the_locale(tmp_path):
    (tmp_path / "m.yaml").write_bytes("# 你好\nrequest: {voice: 李明}\n".encode())
    done = omni("recipe", "show", "./m.yaml", cwd=tmp_path, **C_LOCALE)
    assert (done.returncode, done.stdout.decode()) == (0, "# 你好\nrequest: {voice: 李明}\n")
    done = omni("plan", "recipe=./m.yaml", "pipeline=synthetic", cwd=tmp_path, **C_LOCALE)
    assert done.returncode == 2
    assert "request.voice (m.yaml:2)" in done.stderr.decode()
    done = omni("plan", "recipe=synthetic", "model.path=/模型", **C_LOCALE)
    assert b"model.path" in done.stderr


def test_a_recipe_is_copied_changed_and_planned(tmp_path):
    assert omni("recipe", "cp", "synthetic", ".", cwd=tmp_path).returncode == 0
    again = omni("recipe", "cp", "synthetic", ".", cwd=tmp_path)
    assert (again.returncode, b"--force" in again.stderr) == (2, True)
    (tmp_path / "synthetic.yaml").write_text((tmp_path / "synthetic.yaml").read_text() + "request: {seed: 5}\n")
    done = omni("plan", "recipe=./synthetic.yaml", "--explain", cwd=tmp_path)
    line = next(line for line in done.stdout.decode().splitlines() if line.startswith("request.seed "))
    assert line.split() == ["request.seed", "5", "synthetic.yaml:8"]


def test_recipes_are_listed_and_validated():
    listed = omni("recipe", "ls").stdout.decode()
    assert "synthetic_dag" in listed
    assert max(map(len, listed.splitlines())) < 160, "what fits beside each other in a terminal"
    done = omni("recipe", "validate", "synthetic", "synthetic_dag")
    assert (done.returncode, done.stdout.count(b": ok")) == (0, 2)


def test_validate_refuses_with_the_reason(tmp_path):
    (tmp_path / "bad.yaml").write_text("defaults: [override /pipeline: synthetic]\nrequest: {sed: 1}\n")
    done = omni("recipe", "validate", "synthetic", "./bad.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert b"request.sed (bad.yaml:2): unknown key; the nearest is `request.seed`" in done.stderr


def test_completion_is_a_script_for_bash():
    script = omni("--show-completion").stdout
    assert subprocess.run(["bash", "-n"], input=script, check=False).returncode == 0
    assert b"COMP_WORDBREAKS" in script


def test_own_recipes_and_group_files_come_from_the_environment(tmp_path):
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "slow.yaml").write_text("drain_timeout_s: 99.0\n")
    (tmp_path / "mine.yaml").write_text("defaults: [synthetic, _self_, override /deploy: slow]\n")
    done = omni("plan", "recipe=mine", "--json", OMNI_CONFIG_DIR=str(tmp_path))
    assert b'"drain_timeout_s": 99.0' in done.stdout, done.stderr
    assert b"mine" in omni("recipe", "ls", OMNI_CONFIG_DIR=str(tmp_path)).stdout
    done = omni("plan", OMNI_CONFIG_DIR=str(tmp_path / "gone"))
    assert (done.returncode, b"does not exist" in done.stderr) == (2, True)


def test_bash_completes_behind_the_equals_sign(tmp_path):
    shim = tmp_path / "omni"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m omni_cli "$@"\n')
    shim.chmod(0o755)
    script = (
        "source <(omni --show-completion)\nCOMP_WORDS=(omni plan recipe=synthetic_)\nCOMP_CWORD=2\n_omni_complete\n"
        'printf "%s|" "${COMPREPLY[@]}"\n[[ $COMP_WORDBREAKS != *=* ]] && echo " unbroken"'
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "recipe=synthetic_dag | unbroken\n", done.stderr
