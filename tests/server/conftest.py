"""A synthetic server, and one of the tiny Qwen3-Omni, for all tests that neither load nor hurt them."""

from collections.abc import Iterator

import pytest

from tests.server.serving import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("media")
    (root / "inside.txt").write_text("text", encoding="utf-8")
    with serving(
        f"serve.media_root={root}", "serve.max_image_pixels=1000000", cwd=tmp_path_factory.mktemp("server")
    ) as one:
        yield one


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving("recipe=qwen3_omni", cwd=tmp_path_factory.mktemp("qwen")) as one:
        yield one
