"""The tiny checkpoint: complete, deterministic, safe to build twice, and accepted by transformers' own classes."""

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.models.cache import cache_root
from stages.models.qwen3_omni import tiny
from stages.models.qwen3_omni.tiny_tokenizer import SPECIAL_TOKENS


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OMNI_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/omni"),
        ({"OMNI_CACHE": "", "HOME": "/c"}, "/c/.cache/omni"),
    ],
)
def test_cache_root_takes_the_nearest_setting(environ: dict[str, str], expected: str) -> None:
    assert cache_root(environ) == Path(expected)


def test_the_published_files_and_nothing_else(tiny_folder: Path) -> None:
    assert {path.name for path in tiny_folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "preprocessor_config.json",
        "processor_config.json",
    }


def test_every_build_has_the_same_bytes(tiny_folder: Path, tmp_path: Path) -> None:
    again = tiny.tiny_checkpoint(tmp_path)
    assert again.name == tiny_folder.name
    assert _digests(again) == _digests(tiny_folder)


def test_builders_at_the_same_time_end_with_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: tiny.tiny_checkpoint(tmp_path), range(4)))
    assert len(folders) == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [folders.pop().name]


def test_an_existing_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path)
    stamp = (folder / "config.json").stat().st_mtime_ns
    assert tiny.tiny_checkpoint(tmp_path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == stamp


def test_building_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from stages.models.qwen3_omni.tiny import tiny_checkpoint;"
        "tiny_checkpoint(Path(sys.argv[1])); print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_transformers_loads_every_tensor_and_asks_for_no_other(tiny_folder: Path) -> None:
    from transformers import Qwen3OmniMoeForConditionalGeneration

    model, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny_folder, output_loading_info=True)
    assert {name: list(found) for name, found in info.items() if found} == {}
    parameters = dict(model.named_parameters())
    assert 500_000 < sum(parameter.numel() for parameter in parameters.values()) < 900_000
    # Weights that were never filled are near zero or not finite; the routed experts are those that are easily missed.
    assert all(0.001 < parameter.float().std() < 3 for parameter in parameters.values() if parameter.numel() > 1)


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_folder)


def test_roles_and_the_assistant_header_are_single_tokens(tokenizer, tiny_folder: Path) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    for role in ("system", "user", "assistant"):
        assert tokenizer(f"<|im_start|>{role}\n")["input_ids"] == [
            config["im_start_token_id"],
            config[f"{role}_token_id"],
            tokenizer("\n")["input_ids"][0],
        ]


@settings(deadline=None, max_examples=100)
@given(st.text().filter(lambda text: not any(token in text for token in SPECIAL_TOKENS)))
def test_any_text_survives_the_tokenizer(tokenizer, text: str) -> None:
    from unicodedata import normalize

    assert tokenizer.decode(tokenizer(text)["input_ids"]) == normalize("NFC", text)
