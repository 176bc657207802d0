"""MLflow as a projection of DVC: runs are found by fingerprint, never by chance.

A *stage run* belongs to one fingerprint, a *parent run* to one pipeline key. Whatever
happens (forced re-runs, restored stages, experiments, a deleted store), the same
execution maps to the same run, so nothing is logged twice and ``sync`` can rebuild the
store from ``dvc.lock`` and the outs. MLflow holds no result of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.fingerprint import (
    Entry,
    Pipeline,
    fingerprint,
    locked_entries,
    locked_outs,
    path_hash,
    pipeline_key,
)
from pipeline.processes import Owner
from pipeline.run_content import log_content, log_execution, log_params, logged_metrics
from pipeline.store import WORKSPACES, Store

if TYPE_CHECKING:
    from mlflow.entities import Run

    from pipeline.stage import Stage

T = TypeVar("T")
UI_ADDRESS = "http://127.0.0.1:5055"
"""Where `make ui` serves the store."""

_LIVE_FLUSH_S = 1.0


@dataclass
class LiveRun:
    """Handle of a running stage; calling it streams one advisory live metric."""

    store: Store | None = None
    run_id: str | None = None
    _finish: Callable[[], None] | None = None
    _pending: list[tuple[str, float, int, int]] = field(default_factory=list)
    _flushed_s: float = 0.0

    def __call__(self, name: str, value: float, step: int) -> None:
        """Stream ``live/<name>``; values are sent in batches about once a second."""
        if self.store is None or self.run_id is None:
            return
        self._pending.append((f"live/{name}", value, int(time.time() * 1000), step))
        if time.monotonic() - self._flushed_s > _LIVE_FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Send what is pending."""
        if self.store is not None and self.run_id is not None and self._pending:
            pending, self._pending = self._pending, []
            _advisory(lambda: self.store.log_metrics(self.run_id, pending))  # type: ignore[union-attr,arg-type]
        self._flushed_s = time.monotonic()

    def finish(self) -> None:
        """Log the finished stage from its outs; call it once they are in place."""
        self.flush()
        if self._finish is not None:
            _advisory(self._finish)


def enabled() -> bool:
    """Whether runs are tracked: ``RANLOOM_TRACKING=off`` switches it off."""
    return os.environ.get("RANLOOM_TRACKING", "on") != "off"


@contextmanager
def stage_run(root: Path, stages: Mapping[str, Stage], name: str) -> Iterator[LiveRun]:
    """Project one execution of a stage, from its start to its end.

    MLflow is advisory: a fault of the store is reported on stderr and costs no result.

    Args:
        root: workspace with ``dvc.yaml``.
        stages: declarations, of this stage at least.
        name: the stage that starts.
    """
    if not enabled():
        yield LiveRun()
        return
    projection = _advisory(lambda: _Projection(root, stages))
    run = _advisory(lambda: projection.start(name)) if projection is not None else None
    if projection is None or run is None:
        yield LiveRun()
        return
    store, run_id = projection.store, run.info.run_id
    entry = projection.pipeline.live(name)
    if run.info.status == "FINISHED":  # forced re-run of what is logged already
        yield LiveRun(_finish=projection.close_parent)
        return
    finished = False

    def finish() -> None:
        nonlocal finished
        finished = True
        projection.log_stage(run_id, name)
        store.terminate(run_id, "FINISHED")
        projection.update_parent(started={name: entry})
        projection.close_parent()

    live = LiveRun(store, run_id, finish)
    try:
        yield live
    except BaseException as error:
        live.flush()
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        reason = f"{type(error).__name__}: {error}"
        _advisory(lambda: store.fail(run_id, status, reason))
        _advisory(projection.close_parent)
        raise
    if not finished:
        _advisory(lambda: store.terminate(run_id, "FAILED"))


@dataclass(frozen=True)
class SyncReport:
    """What ``sync`` did.

    Args:
        created: stages whose run was made from ``dvc.lock`` and the outs.
        present: stages whose run was there already.
        skipped: stage to reason, for stages that could not be projected.
        killed: ids of runs whose process had died.
        parent: id of the parent run, if all stages are in ``dvc.lock``.
    """

    created: tuple[str, ...]
    present: tuple[str, ...]
    skipped: Mapping[str, str]
    killed: tuple[str, ...]
    parent: str | None


def sync(root: Path, stages: Mapping[str, Stage]) -> SyncReport:
    """Bring the store in line with ``dvc.lock`` and the outs of a workspace."""
    return _Projection(root, stages).sync()


class _Projection:
    """The runs of one workspace in the store."""

    def __init__(self, root: Path, stages: Mapping[str, Stage]) -> None:
        self.root = root
        self.stages = stages
        self.pipeline = Pipeline(root)
        self.store = Store.open(root)
        self.parent: Run | None = None

    def start(self, name: str) -> Run | None:
        """Get or create the parent by key and the stage's run by fingerprint.

        Returns:
            The run; ``None`` where another process executes the same at this moment and logs it.
        """
        entry = self.pipeline.live(name)
        entries = self.pipeline.entries()
        key = pipeline_key(entries, self.pipeline.outs)
        with self.store.lock():
            self.store.settle_dead()
            self.parent = self._parent(key, entries, reopen=True)
            run = self.store.stage_run(fingerprint(entry))
            if run is None:
                run = self._create(name, entry, self.parent)
                log_execution(self.store, run.info.run_id, entry)
            elif run.info.status == "RUNNING":
                return None
        return run

    def sync(self) -> SyncReport:
        locked = locked_entries(self.root)
        created, present, skipped = [], [], {}
        parent: Run | None = None
        with self.store.lock():
            killed = self.store.settle_dead()
            if set(self.stages) <= set(locked):
                key = pipeline_key({n: locked[n] for n in self.stages}, self.pipeline.outs)
                parent = self._parent(key, locked, reopen=False)
                self.parent = parent
            for name in self.stages:
                if name not in locked:
                    skipped[name] = "not in dvc.lock: it has not run"
                    continue
                run = self.store.stage_run(fingerprint(locked[name]))
                if run is not None and run.info.status == "FINISHED":
                    present.append(name)
                    continue
                if run is not None:
                    skipped[name] = "another process runs it"
                    continue
                if stale := self._stale_out(name):
                    skipped[name] = stale
                    continue
                run = self._create(name, locked[name], parent)
                log_execution(self.store, run.info.run_id, locked[name])
                self.log_stage(run.info.run_id, name)
                self.store.terminate(run.info.run_id, "FINISHED")
                created.append(name)
        if parent is not None:
            self.update_parent(started={})
            self.store.close_parent(parent.info.run_id, "FINISHED")
        return SyncReport(
            tuple(created),
            tuple(present),
            skipped,
            tuple(killed),
            parent.info.run_id if parent is not None else None,
        )

    def log_stage(self, run_id: str, name: str) -> None:
        """Log metrics, series, figures and tables of a stage from its outs."""
        log_content(self.store, run_id, self.stages[name], self.root)

    def update_parent(self, started: Mapping[str, Entry]) -> None:
        """Show on the parent the runs and headline metrics of every up-to-date stage.

        Args:
            started: stages that just ran (not yet in ``dvc.lock``) with their live entries.
        """
        if self.parent is None:
            return
        locked = {**locked_entries(self.root), **started}
        parent_id = self.parent.info.run_id
        for name in self.pipeline.stages:
            entry = locked.get(name)
            if entry is None or not self._is_current(name, entry, name in started):
                continue
            run = self.store.stage_run(fingerprint(entry))
            if run is None:
                continue
            self.store.tag(parent_id, f"ranloom.run.{name}", run.info.run_id)
            folder = self.root / "outs" / name
            metrics = logged_metrics(folder / "measured") | logged_metrics(folder)
            names = json.loads(run.data.tags.get("ranloom.headline", "[]"))
            headline = {k: metrics[k] for k in names if k in metrics}
            self.store.log_latest(parent_id, {f"{name}.{k}": v for k, v in headline.items()})

    def close_parent(self) -> None:
        """End the parent unless another of its stages is still running."""
        if self.parent is not None:
            self.store.close_parent(self.parent.info.run_id)

    def _create(self, name: str, entry: Entry, parent: Run | None) -> Run:
        tags = {
            "ranloom.kind": "stage",
            "ranloom.stage": name,
            "ranloom.fingerprint": fingerprint(entry),
            "ranloom.headline": json.dumps(self.stages[name].headline),
            **Owner.current().tags(),
            **self._git_tags,
        }
        if parent is not None:
            tags["mlflow.parentRunId"] = parent.info.run_id
        return self.store.create(name, tags)

    @cached_property
    def _git_tags(self) -> dict[str, str]:
        return git_tags(self.root)

    def _parent(self, key: str, entries: Mapping[str, Entry], *, reopen: bool) -> Run:
        """The parent; a new one carries the parameters of all stages, so that two compare."""
        tags = {
            "ranloom.workspace": str(self.root),
            "mlflow.source.name": str(self.root),
            **self._git_tags,
        }
        in_workspace = self.root.parent.name == WORKSPACES
        label = os.environ.get("DVC_EXP_NAME") or (self.root.name if in_workspace else "chain")
        parent = self.store.parent(key, label, tags, reopen=reopen)
        if not parent.data.params:
            everything = {k: v for entry in entries.values() for k, v in entry.params.items()}
            log_params(self.store, parent.info.run_id, everything)
        return parent

    def _is_current(self, name: str, entry: Entry, just_ran: bool) -> bool:
        if just_ran:
            return True
        try:
            return fingerprint(self.pipeline.live(name)) == fingerprint(entry)
        except FileNotFoundError:
            return False

    def _stale_out(self, name: str) -> str | None:
        for path, md5 in locked_outs(self.root, name).items():
            out = self.root / path
            if not out.exists():
                return f"{path} is missing: run `dvc checkout` or `dvc pull` first"
            if path_hash(out) != md5:
                return f"{path} differs from dvc.lock: run `dvc repro` or `dvc checkout` first"
        return None


def git_tags(root: Path) -> dict[str, str]:
    """Commit and state of the tree that a workspace's code comes from; empty without git."""
    sources = (root / "stages").resolve().parent  # a workspace links to the main tree

    def git(*args: str) -> str:
        try:
            done = subprocess.run(
                ["git", *args], cwd=sources, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:  # no git on this machine
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    # What the chain itself writes (lock, committed metrics) does not make a tree dirty.
    changed = git("status", "--porcelain", "--", ".", ":!dvc.lock", ":!outs")
    return {
        "mlflow.source.git.commit": git("rev-parse", "HEAD"),
        "ranloom.git.dirty": str(bool(changed)).lower(),
    }


def _advisory(action: Callable[[], T]) -> T | None:
    try:
        return action()
    except Exception as error:
        print(f"MLflow: {type(error).__name__}: {error} (results are kept)", file=sys.stderr)
        return None
