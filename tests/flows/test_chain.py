"""Prefect wraps, DVC decides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from flows import chain, dvc_process
from pipeline.registry import Registry
from tests.pipeline.conftest import ROOT
from tests.pipeline.toy_chain import STAGES


def wait_until(condition, seconds: float = 60.0):
    """Wait for a condition to become true; returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return value


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def toy_flow(toy, monkeypatch: pytest.MonkeyPatch):
    """The chain's flow body over the toy stages."""
    from prefect import flow

    monkeypatch.setattr(chain, "check", lambda *_: [])
    registry = Registry(STAGES.values())

    @flow(name="toy", task_runner=chain.RUNNER)
    def run():
        return chain.run_stages(toy.root, registry)

    return run


def logs_of(flow_run_id) -> list[str]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    with get_client(sync_client=True) as client:
        found = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id])))
    return [entry.message for entry in found]


@pytest.mark.usefixtures("prefect_server")
def test_flow_runs_streams_and_summarises(toy, toy_flow) -> None:
    state = toy_flow(return_state=True)
    assert state.is_completed()
    (parent,) = toy.runs("pipeline")
    assert state.result() == parent.info.run_id
    assert (toy.root / "outs" / "sum" / "series.parquet").exists()
    lines = wait_until(
        lambda: [m for m in logs_of(state.state_details.flow_run_id) if "is at work" in m], 30
    )
    assert {"make is at work", "sum is at work"} <= set(lines)

    from prefect.artifacts import Artifact

    artifact = Artifact.get("ranloom-headlines")
    assert artifact is not None
    assert "| make | total | 0.01 |" in artifact.data
    assert parent.info.run_id in artifact.data


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(("behave", "end"), [("well", "FINISHED"), ("fail", "FAILED")])
def test_the_parent_runs_until_the_flow_ends(
    toy, toy_flow, monkeypatch: pytest.MonkeyPatch, behave: str, end: str
) -> None:
    toy.set_param("sum.behave", behave)
    seen = []
    repro = dvc_process.Processes.repro

    def looked_at(*arguments) -> None:
        try:
            repro(*arguments)
        finally:
            seen.extend(parent.info.status for parent in toy.runs("pipeline"))

    monkeypatch.setattr(dvc_process.Processes, "repro", looked_at)
    toy_flow(return_state=True)
    assert seen == ["RUNNING", "RUNNING"]  # after each of the two stages
    assert [parent.info.status for parent in toy.runs("pipeline")] == [end]


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("behave", "line"),
    [
        ("fail", "sum: ValueError: behaves badly"),
        ("refuse", "sum: params.yaml: sum.behave: 'refuse' ..."),
    ],
)
def test_failed_stage_fails_the_flow_with_its_own_line(
    toy,
    toy_flow,
    behave: str,
    line: str,
) -> None:
    toy.set_param("sum.behave", behave)
    state = toy_flow(return_state=True)
    assert state.is_failed()
    assert line in state.message
    lines = wait_until(
        lambda: [m for m in logs_of(state.state_details.flow_run_id) if "sum: " in m], 30
    )
    assert not any("Retrying" in line or "AwaitingRetry" in line for line in lines)


@pytest.mark.usefixtures("prefect_server")
def test_faults_found_by_check_stop_the_flow(toy_flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "check", lambda *_: ["params.yaml: a.b: -1 is not usable"])
    with pytest.raises(dvc_process.BadInputError, match=r"a\.b: -1"):
        toy_flow()


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("error", "attempts"),
    [(dvc_process.WorkspaceBusyError, 2), (dvc_process.BadInputError, 1), (RuntimeError, 1)],
)
def test_only_busy_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], attempts: int
) -> None:
    from prefect import flow

    calls: list[str] = []

    def repro(_self: object, _root: Path, what: str, *_: object) -> None:
        calls.append(what)
        if len(calls) == 1:
            raise error(what)

    monkeypatch.setattr(dvc_process.Processes, "repro", repro)
    quick = chain.reproduce.with_options(retry_delay_seconds=0)

    @flow(name="toy")
    def run() -> None:
        quick(Path(), "make", dvc_process.Processes())

    state = run(return_state=True)
    assert len(calls) == attempts
    assert state.is_completed() == (attempts == 2)


def test_second_repro_in_a_workspace_is_busy(toy) -> None:
    toy.set_param("sum.behave", "slow")
    first = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=toy.root,
        env=toy.env,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (toy.root / "pid").exists())
        with pytest.raises(dvc_process.WorkspaceBusyError):
            dvc_process.Processes().repro(toy.root, "sum", ["--single-item", "sum"], lambda _: None)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()


@pytest.mark.parametrize("victim", ["flow, asked", "flow, killed", "dvc, killed"])
def test_nothing_survives(toy, victim: str) -> None:
    """Whoever is ended, however: neither DVC nor the stage lives on as an orphan."""
    toy.set_param("sum.behave", "slow")
    code = (
        "import signal, sys; from pathlib import Path; from flows import dvc_process\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "processes = dvc_process.Processes()\n"
        "try: processes.repro(Path.cwd(), 'all', [], print)\n"
        "finally: processes.stop()"
    )
    flow = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=toy.root,
        env={**toy.env, "PYTHONPATH": str(ROOT), "SHELL": "/bin/sh"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stage = int(wait_until(lambda: (toy.root / "pid").exists() and (toy.root / "pid").read_text()))
    family = [flow.pid, *(p.pid for p in psutil.Process(flow.pid).children(recursive=True))]
    assert stage in family
    dvc = next(p for p in family[1:] if "dvc" in " ".join(psutil.Process(p).cmdline()))
    target, signum = {
        "flow, asked": (flow.pid, signal.SIGTERM),
        "flow, killed": (flow.pid, signal.SIGKILL),
        "dvc, killed": (dvc, signal.SIGKILL),
    }[victim]
    os.kill(target, signum)
    flow.wait(30)
    wait_until(lambda: all(gone(pid) for pid in family), 30)
    assert not (toy.root / "outs" / "sum" / "series.parquet").exists()
    statuses = {r.data.tags["ranloom.stage"]: r.info.status for r in toy.runs("stage")}
    assert statuses["sum"] == "KILLED"


def test_what_is_stopped_starts_nothing_more(toy) -> None:
    processes = dvc_process.Processes()
    processes.stop()
    with pytest.raises(dvc_process.StoppedError):
        processes.repro(toy.root, "sum", [], lambda _: None)


def test_ending_one_flow_leaves_the_processes_of_another(toy) -> None:
    toy.set_param("sum.behave", "slow")
    ours, theirs = dvc_process.Processes(), dvc_process.Processes()
    errors: list[Exception] = []

    def work() -> None:
        try:
            ours.repro(toy.root, "all", [], lambda _: None)
        except dvc_process.StageFailedError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: (toy.root / "pid").exists())
    theirs.stop()
    stage = int(wait_until(lambda: (toy.root / "pid").read_text()))
    assert not gone(stage)
    ours.stop()
    thread.join(30)
    assert gone(stage)
    assert [type(error) for error in errors] == [dvc_process.StoppedError]
