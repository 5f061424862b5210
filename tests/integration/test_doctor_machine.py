"""The doctor on the machine that runs the tests."""

import sys
from subprocess import run

from stages.connectors.ring import SHM_DIR


def test_the_doctor_looks_at_this_machine_without_torch() -> None:
    code = (
        "import sys; from omni_cli.commands.doctor import findings; print(*findings(clean=False), sep='\\n'); "
        "sys.exit('torch' in sys.modules)"
    )
    result = run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for name in ("python", "torch", "transformers", "processors", "gpu", SHM_DIR, "open files", "leftovers"):
        assert f" {name} " in result.stdout
