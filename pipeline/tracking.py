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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline import workspace
from pipeline.fingerprint import (
    Entry,
    Pipeline,
    fingerprint,
    locked_entries,
    locked_outs,
    path_hash,
    pipeline_key,
)
from pipeline.hold import held
from pipeline.processes import Owner
from pipeline.run_content import log_content, log_execution, log_params, logged_metrics
from pipeline.store import WORKSPACE, WORKSPACES, Store, store_folder

if TYPE_CHECKING:
    from mlflow.entities import Run

    from pipeline.stage import Stage

T = TypeVar("T")
UI_ADDRESS = "http://127.0.0.1:5055"
"""Where `make ui` serves the store."""
UI_MODE = "workflowType=machine_learning"
"""Query that opens a page for training runs; MLflow opens the one for GenAI by itself."""


def enabled() -> bool:
    """Whether runs are tracked: ``RANLOOM_TRACKING=off`` switches it off."""
    return os.environ.get("RANLOOM_TRACKING", "on") != "off"


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
    return Projection(root, stages).sync()


def settle(root: Path) -> None:
    """End the parent run of a rebuild that has stopped without a result to sync."""

    def work() -> None:
        store = Store.open(root)
        with store.lock():
            store.settle_dead()

    if enabled() and (store_folder(root) / "mlflow.db").exists():
        advisory(work)


@contextmanager
def rebuild(root: Path) -> Iterator[None]:
    """Keep the parent run of a workspace RUNNING from stage to stage.

    After a rebuild that has succeeded `sync` ends it; one that stops by an exception ends it here.
    """
    try:
        with held(root):
            yield
    except BaseException:
        settle(root)
        raise


class Projection:
    """The runs of one workspace in the store."""

    def __init__(self, root: Path, stages: Mapping[str, Stage]) -> None:
        self.root = root
        self.stages = stages
        self.pipeline = Pipeline(root)
        self.parent: Run | None = None

    @cached_property
    def store(self) -> Store:
        """The store, opened where it is needed first."""
        return Store.open(self.root)

    def identify(self, name: str) -> tuple[Entry, dict[str, Entry]]:
        """Entry of a stage, and entries of all for the pipeline key, as the files are.

        A file is hashed once: what a first call found stands.
        """
        return self.pipeline.live(name), self.pipeline.entries()

    def start(self, name: str, owner: Owner) -> Run | None:
        """Get or create the parent by key and the stage's run by fingerprint.

        Args:
            name: the stage that starts.
            owner: the process that executes it.

        Returns:
            The run; ``None`` where another process executes the same at this moment and logs it.
        """
        entry, entries = self.identify(name)
        key = pipeline_key(entries, self.pipeline.outs)
        with self.store.lock():
            self.store.settle_dead()
            self.parent = self._parent(key, entries, reopen=True)
            run = self.store.stage_run(fingerprint(entry))
            if run is None:
                run = self._create(name, entry, self.parent, owner)
                log_execution(self.store, run.info.run_id, entry)
            elif run.info.status == "RUNNING":
                return None
        return run

    def read_ahead(self) -> None:
        """Parse ``dvc.lock`` while the stage is at work: it is long."""
        locked_entries(self.root)

    def stream(self, run: Run, values: Iterable[tuple[str, float, int, int]]) -> None:
        """Log live metrics; an execution that is logged already keeps those of its first time."""
        if run.info.status == "RUNNING":
            self.store.log_metrics(run.info.run_id, values)

    def finish(self, run: Run, name: str) -> None:
        """Log the finished stage from its outs, unless it is a forced repetition."""
        if run.info.status == "RUNNING":
            self.log_stage(run.info.run_id, name)
            self.store.terminate(run, "FINISHED")
            self.update_parent(started={name: self.pipeline.live(name)})
        self.close_parent()

    def fail(self, run: Run, status: str, reason: str) -> None:
        """End the run of a stage that gave no result, with the reason."""
        if run.info.status == "RUNNING":
            self.store.fail(run, status, reason)
        self.close_parent()

    def sync(self) -> SyncReport:
        """Give each stage in ``dvc.lock`` its run, and the parent what all of them show."""
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
                run = self._create(name, locked[name], parent, Owner.current())
                log_execution(self.store, run.info.run_id, locked[name])
                self.log_stage(run.info.run_id, name)
                self.store.terminate(run, "FINISHED")
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
        """End the parent unless another of its stages runs or a rebuild goes on to the next."""
        if self.parent is not None:
            self.store.close_parent(self.parent.info.run_id)

    def _create(self, name: str, entry: Entry, parent: Run | None, owner: Owner) -> Run:
        tags = {
            "ranloom.kind": "stage",
            "ranloom.stage": name,
            "ranloom.fingerprint": fingerprint(entry),
            "ranloom.headline": json.dumps(self.stages[name].headline),
            **owner.tags(),
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
            WORKSPACE: str(self.root),
            "mlflow.source.name": str(self.root),
            **self._git_tags,
        }
        parent = self.store.parent(key, self._parent_name(key), tags, reopen=reopen)
        if not parent.data.params:
            everything = {k: v for entry in entries.values() for k, v in entry.params.items()}
            log_params(self.store, parent.info.run_id, everything)
        return parent

    def _parent_name(self, key: str) -> str:
        """What was overridden, else what the chain is of and the head of its key."""
        experiment = os.environ.get("DVC_EXP_NAME")
        if experiment is None and (title := workspace.title(self.root)):
            return title
        in_workspace = self.root.parent.name == WORKSPACES
        return f"{experiment or (self.root.name if in_workspace else 'chain')}-{key[:8]}"

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
            if path_hash(out, self.root) != md5:
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


def one_line(error: Exception) -> str:
    """Kind and first line of an error: those of a database go on with the SQL and links."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def advisory(action: Callable[[], T]) -> T | None:
    """Do what may fail without costing a result: a fault is told on stderr."""
    try:
        return action()
    except Exception as error:
        print(f"MLflow: {one_line(error)} (results are kept)", file=sys.stderr)
        return None
