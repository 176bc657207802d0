"""One Prefect test server for the session, and fixtures of the pipeline and of the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline import environment
from tests.pipeline.conftest import toy, toy_template  # noqa: F401  (fixtures)
from tests.stages.conftest import paths  # noqa: F401  (fixture)

StandIns = Callable[[Callable[[dict], None]], None]


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A server with a database of its own."""
    environment.apply()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Points of a sweep without workspace and DVC; told as they begin, the one at 2 fails."""
    from flows import dvc_process, sweep

    def install(begins: Callable[[dict], None]) -> None:
        def place(root, registry, preset, overrides):
            if overrides:  # else the workspace that all points begin from
                begins(overrides)
            if overrides.get("a.x") == 2:
                raise dvc_process.StageFailedError("this point fails")
            return tmp_path

        monkeypatch.setenv("RANLOOM_TRACKING", "off")
        monkeypatch.setattr(sweep.workspace, "place", place)
        monkeypatch.setattr(sweep, "check", lambda *_: [])
        monkeypatch.setattr(sweep.dvc_process.Processes, "repro", lambda *_: None)
        monkeypatch.setattr(sweep, "headline", lambda *_: [("s", "m", 1.5)])

    return install
