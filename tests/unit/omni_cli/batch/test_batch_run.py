"""How a run ends: what came of it is said whatever else fails."""

from types import SimpleNamespace

import pytest

from omni_cli.batch import run
from omni_cli.errors import ArtifactError


class FullAtTheEnd:
    """A disk that takes the first manifest and not the last."""

    written = 0

    def manifest(self, manifest):
        self.written += 1
        if self.written > 1:
            raise ArtifactError("no room")


def test_what_failed_is_said_though_the_last_manifest_cannot_be_written(monkeypatch):
    said, state = [], SimpleNamespace(manifest=dict, exit_code=1)
    monkeypatch.setattr(run, "say_summary", lambda state, quiet: said.append(state.status))
    with pytest.raises(ArtifactError, match="no room"), run._concluded(state, FullAtTheEnd(), quiet=False):
        pass
    assert said == ["failed"]
