"""Small trees of configuration files, written for one test."""

from pathlib import Path

from omni_cli.config.library import Library, bundled

CONFIG = """\
defaults:
  - pipeline: synthetic
  - deploy: auto
  - request: default
  - serve: default
  - trace: default
  - _self_
  - recipe: null
"""


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def library(folder: Path, files: dict[str, str | bytes]) -> Library:
    """A library of these files only, `conf/...` and `recipes/...`, with one file in each group that is not given."""
    groups = {f"conf/{name}/default.yaml": "{}\n" for name in ("request", "serve", "trace")}
    base = {"conf/config.yaml": CONFIG, "conf/deploy/auto.yaml": "{}\n", **groups}
    base["conf/pipeline/synthetic.yaml"] = (bundled("conf") / "pipeline" / "synthetic.yaml").read_text()
    write(folder, {**base, **files})
    return Library(conf=(folder / "conf",), recipes=(folder / "recipes",))
