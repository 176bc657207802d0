"""The same sweep on workers of a Dask cluster; skipped without the extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows import sweep
from ranloom.errors import InputError
from tests.flows.conftest import StandIns


@pytest.mark.usefixtures("prefect_server")
def test_points_run_on_the_workers_of_a_cluster(tmp_path: Path, stand_ins: StandIns) -> None:
    pytest.importorskip("prefect_dask", reason="needs the extra: pip install -e .[dask]")
    from distributed import LocalCluster, get_worker

    workers: dict[int, str] = {}

    def note_worker(overrides: dict) -> None:
        workers[overrides["a.x"]] = get_worker().address  # a ValueError outside of a worker

    stand_ins(note_worker)
    # workers in this process, so that they see what is set above; tasks travel by TCP all the same
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        dashboard_address=None,
    ) as cluster:
        on_dask = sweep.sweep.with_options(task_runner=sweep.dask_runner(cluster.scheduler_address))
        state = on_dask({"a.x": [1, 2, 3]}, preset=None, root=tmp_path, return_state=True)
    assert sorted(workers) == [1, 2, 3]
    assert all(address.startswith("tcp://") for address in workers.values())
    assert state.is_failed()
    assert "1 of 3 points failed" in state.message
    assert "this point fails" in state.message


def test_without_the_extra_one_line_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    with pytest.raises(InputError, match=r"--dask: 'local' is not usable; .*\[dask\]"):
        sweep.main(["failures", "--dask", "local"])


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["sites", "--ray"], ["sites", "--dask"]])
def test_unknown_sweeps_and_options_are_one_line(arguments: list[str]) -> None:
    with pytest.raises(InputError, match="NAME: sites, core") as refused:
        sweep.main(arguments)
    assert "\n" not in str(refused.value)
