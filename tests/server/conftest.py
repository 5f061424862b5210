"""Two synthetic servers, and one of the tiny Qwen3-Omni, for all tests that do not hurt them."""

import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from tests.server.serving import INCREMENTAL, Server, serving

# Every client of these tests would read all certificates again, 20 ms each time.
ssl.create_default_context = cache(ssl.create_default_context)


@pytest.fixture(scope="session")
def media_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("media")
    Image.new("RGB", (8, 8), "green").save(root / "inside.png")
    (root / "outside").symlink_to("/etc/passwd")
    return root


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, media_root: Path) -> Iterator[Server]:
    words = (f"serve.media_root={media_root}", "serve.max_image_pixels=1000000", "serve.debug_requests=true")
    with serving(*words, cwd=tmp_path_factory.mktemp("server")) as one:
        yield one


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving("recipe=qwen3_omni", "model.path=tiny", cwd=tmp_path_factory.mktemp("qwen")) as one:
        yield one


@pytest.fixture(scope="session")
def piecewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its stages work on a request at the same time; many may come at once, none with much."""
    limits = ("serve.max_concurrency=200", "serve.max_buffered_bytes=1000000", "serve.max_body_bytes=4096")
    with serving(*INCREMENTAL, *limits, cwd=tmp_path_factory.mktemp("piecewise")) as one:
        yield one
