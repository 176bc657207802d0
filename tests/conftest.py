"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# The suite draws the same examples every time; HYPOTHESIS_PROFILE=explore draws new ones. A first
# call compiles, which no deadline fits.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

ROOT = Path(__file__).resolve().parent.parent

# Runs at the start of every Python process of the chain: notes connections that leave the machine.
GUARD = """\
import sys


def note(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        address = str(arguments[1][0])
    elif event == "socket.getaddrinfo":
        address = str(arguments[0])
    else:
        return
    if address not in ("127.0.0.1", "::1", "localhost", "None", "0.0.0.0"):
        with open({calls!r}, "a") as stream:
            stream.write(" ".join(sys.argv) + " " + address + "\\n")


sys.addaudithook(note)
"""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests over the whole chain share one worker, so that it runs once; so do those of Prefect."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "quick_chain" in fixtures:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.xdist_group("chain"))
            item.add_marker(pytest.mark.timeout(600))
        elif "prefect_server" in fixtures:
            item.add_marker(pytest.mark.xdist_group("prefect"))


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces, logs and topologies, which are not part of the repository."""
    folder = Path(os.environ.get("RANLOOM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not present: set RANLOOM_DATA (looked in {folder})")
    return folder


@dataclass(frozen=True)
class Chain:
    """The whole chain after a run at the quick preset.

    Args:
        place: root of its workspace, with ``params.yaml``, ``dvc.lock`` and ``outs/``.
        store: folder of its MLflow store.
        calls: file with one line for each attempt to reach another machine.
    """

    place: Path
    store: Path
    calls: Path

    @property
    def outs(self) -> Path:
        """Outputs, one folder a stage."""
        return self.place / "outs"


@pytest.fixture(scope="session")
def quick_chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """The chain, run once a session at the quick preset, with a cache and a store of its own."""
    import stages
    from pipeline import dvc, workspace
    from pipeline.check import check
    from pipeline.registry import discover
    from ranloom.errors import InputError

    folder = tmp_path_factory.mktemp("chain")
    registry = discover(stages)
    place = workspace.place(ROOT, registry, "quick", {}, folder / "quick")
    config = (place / ".dvc" / "config").read_text(encoding="utf-8")
    own = config.replace(str(ROOT / ".dvc" / "cache"), str(folder / "cache"))
    (place / ".dvc" / "config").write_text(own, encoding="utf-8")
    assert check(place, registry, InputError) == []
    chain = Chain(place, folder / "mlruns", folder / "calls")
    chain.calls.touch()
    (folder / "guard").mkdir()
    (folder / "guard" / "sitecustomize.py").write_text(GUARD.format(calls=str(chain.calls)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANLOOM_STORE", str(chain.store))
        patch.delenv("RANLOOM_TRACKING", raising=False)
        patch.setenv("PYTHONPATH", str(folder / "guard"))
        patch.setenv("DVC_SITE_CACHE_DIR", str(folder / "site"))
        outcome = dvc.repro(place)
    assert outcome == dvc.Outcome(0, ())
    return chain
