"""Who holds a workspace, and until when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipeline.hold import held, is_held
from tests.pipeline.workbench import ROOT, end, wait_until


def test_a_workspace_is_held_until_the_last_rebuild_leaves_it(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with held(tmp_path):
        with held(tmp_path):
            assert is_held(tmp_path)
        assert is_held(tmp_path)
        assert not is_held(tmp_path.parent)
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "removed")


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pipeline.hold import held\n"
        "with held(Path(sys.argv[1])): time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
    try:
        wait_until(lambda: is_held(tmp_path))
    finally:
        end(holder)
    assert not is_held(tmp_path)
