"""The whole chain on the real TRACTOR traces, where they are present."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import stages
from pipeline import dvc, workspace
from pipeline.check import check
from pipeline.registry import METRICS, discover
from ranloom.errors import InputError
from tests.conftest import ROOT

REGISTRY = discover(stages)

pytestmark = pytest.mark.skipif(
    "generate_traces" not in REGISTRY, reason="stage generate_traces is not declared"
)


@pytest.fixture(scope="module")
def tractor(quick_chain, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose traces are a copy of the real ones; what they do not touch is cached."""
    source = shared_data / "tractor"
    if not source.is_dir():
        pytest.skip(f"the TRACTOR traces are not present: looked in {source}")
    folder = tmp_path_factory.mktemp("tractor")
    shutil.copytree(source, folder / "traces")
    overrides = {
        "generate_traces.source": "tractor",
        "generate_traces.source_path": str(folder / "traces"),
    }
    place = workspace.place(ROOT, REGISTRY, "quick", overrides, folder / "quick")
    shutil.copy(quick_chain.place / ".dvc" / "config", place / ".dvc" / "config")
    assert check(place, REGISTRY, InputError) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANLOOM_TRACKING", "off")
        patch.setenv("DVC_SITE_CACHE_DIR", str(folder / "site"))
        assert dvc.repro(place) == dvc.Outcome(0, ())
    return place


def metrics(place: Path, stage: str) -> dict:
    return json.loads((place / "outs" / stage / METRICS).read_text(encoding="utf-8"))


def changed_stages(place: Path) -> list[str]:
    done = subprocess.run(
        dvc.command("status", "--json"),
        cwd=place,
        env=dvc.variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))


def test_every_stage_ran_on_them(tractor: Path, quick_chain) -> None:
    """What the traces decide differs from the generator's, what they do not touch is the same."""
    for name in REGISTRY:
        assert metrics(tractor, name)
    assert metrics(tractor, "profile_lut") == metrics(quick_chain.place, "profile_lut")
    for scenario in ("scenario_1", "scenario_2"):
        real = metrics(tractor, "generate_traces")[scenario]
        assert real != metrics(quick_chain.place, "generate_traces")[scenario]
        assert real["noctrl"]["throughput_mbps"] > 0


def test_a_changed_trace_re_runs_the_stage(tractor: Path) -> None:
    assert changed_stages(tractor) == []
    file = next((tractor.parent / "traces" / "raw").glob("*.csv"))
    original = file.read_bytes()
    file.write_bytes(original + original.splitlines(keepends=True)[-1])
    try:
        assert changed_stages(tractor)[0] == "generate_traces"
    finally:
        file.write_bytes(original)
    assert changed_stages(tractor) == []


@pytest.mark.parametrize("damage", ["empty", "text", "missing"])
def test_a_damaged_trace_is_named_in_one_line(tractor: Path, damage: str) -> None:
    """And costs no earlier result."""
    before = digest(tractor / "outs")
    file = next((tractor.parent / "traces" / "raw").glob("*.csv"))
    original = file.read_bytes()
    lines = original.splitlines(keepends=True)
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else b"".join([*lines[:3], b"x,y,z\n"]))
    try:
        done = subprocess.run(
            [str(dvc.command()[0]), "-m", "stages", "generate_traces"],
            cwd=tractor,
            env={**dvc.variables(), "RANLOOM_TRACKING": "off"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        file.write_bytes(original)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert file.stem in line
    assert digest(tractor / "outs") == before


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
