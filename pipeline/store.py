"""The MLflow store: where it is, how it is made, and the few queries that the projection needs."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import BaseFileLock, FileLock

from pipeline import environment, hold
from pipeline.processes import Owner

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "ranloom"
MLFLOW_CLIENT = "mlflow.store.tracking.sqlalchemy_store"
"""The part of MLflow that a store needs; imported only where runs are tracked: it takes 2 s."""
WORKSPACES = ".ranloom"
"""Folder of the workspaces of presets and sweeps."""

WORKSPACE = "ranloom.workspace"
"""Tag of a parent: the workspace that its stages were last run in."""

_KIND = "custom_model_development"  # the page opens on the runs, not on traces of language models
_BATCH = 1000  # MLflow's limit for one log_batch call
_EXPERIMENT_FOLDER = (".dvc", "tmp", "exps")


def store_folder(root: Path) -> Path:
    """Folder of the store that a workspace belongs to.

    ``RANLOOM_STORE`` names it; otherwise it is ``mlruns/`` of the workspace, or of the
    repository that a temporary DVC experiment was started from.
    """
    if named := os.environ.get("RANLOOM_STORE"):
        return Path(named).resolve()
    parts = root.resolve().parts
    for i in range(len(parts) - len(_EXPERIMENT_FOLDER)):
        if parts[i : i + len(_EXPERIMENT_FOLDER)] == _EXPERIMENT_FOLDER:
            return Path(*parts[:i]) / "mlruns"
    return (root / "mlruns").resolve()


def store_uri(folder: Path) -> str:
    """Tracking URI of a store folder."""
    return f"sqlite:///{folder / 'mlflow.db'}"


class Store:
    """An open store. Ids of runs are explicit: nothing depends on an active run."""

    def __init__(self, folder: Path, client: MlflowClient, experiment_id: str) -> None:
        self.folder = folder
        self.client = client
        self.experiment_id = experiment_id

    @classmethod
    def open(cls, root: Path) -> Store:
        """Open the store of a workspace, making it where it does not exist.

        The first creation of the database is not safe against a second one at the same
        time, hence the file lock.
        """
        environment.apply()
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store").setLevel(logging.WARNING)

        folder = store_folder(root)
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            ignore = folder / ".gitignore"
            if not ignore.exists():  # deleted with the folder; git must not take the database
                ignore.write_text("*\n!.gitignore\n", encoding="utf-8")
            client = MlflowClient(store_uri(folder))
            experiment = client.get_experiment_by_name(EXPERIMENT)
            experiment_id = (
                experiment.experiment_id
                if experiment is not None
                else client.create_experiment(
                    EXPERIMENT,
                    artifact_location=(folder / "artifacts").as_uri(),
                    tags={"mlflow.experimentKind": _KIND},
                )
            )
        return cls(folder, client, experiment_id)

    def lock(self) -> BaseFileLock:
        """Lock under which runs are looked up and made."""
        return _lock(self.folder)

    def stage_run(self, fingerprint: str) -> Run | None:
        """The finished or running run of a fingerprint, the finished one first."""
        runs = self._search(f"tags.`ranloom.fingerprint` = '{fingerprint}'")
        usable = [r for r in runs if r.info.status in ("FINISHED", "RUNNING")]
        return min(usable, key=lambda r: r.info.status, default=None)

    def parent(self, key: str, name: str, tags: Mapping[str, str], *, reopen: bool) -> Run:
        """Get or create the parent run of a pipeline key.

        Args:
            key: pipeline key.
            name: name of a new parent.
            tags: tags of a new parent.
            reopen: set an existing parent back to RUNNING, in the workspace of the tags.
        """
        runs = self._search(f"tags.`ranloom.pipeline` = '{key}'")
        if not runs:
            kind = {"ranloom.kind": "pipeline", "ranloom.pipeline": key}
            return self.create(name, {**kind, **tags})
        if reopen:
            if runs[0].info.status != "RUNNING":
                self.client.update_run(runs[0].info.run_id, status="RUNNING")
            if runs[0].data.tags.get(WORKSPACE) != tags[WORKSPACE]:
                self.tag(runs[0].info.run_id, WORKSPACE, tags[WORKSPACE])
        return runs[0]

    def create(self, name: str, tags: Mapping[str, str]) -> Run:
        """Create a run."""
        return self.client.create_run(self.experiment_id, tags=dict(tags), run_name=name)

    def settle_dead(self) -> list[str]:
        """Mark runs of dead processes KILLED, then end parents that nobody works on.

        Returns:
            Ids of the stage runs marked.
        """
        killed = []
        for run in self._search("tags.`ranloom.kind` = 'stage' and attributes.status = 'RUNNING'"):
            owner = Owner.from_tags(run.data.tags)
            if owner is not None and owner.is_dead():
                self.terminate(run, "KILLED")
                killed.append(run.info.run_id)
        for run in self._search(
            "tags.`ranloom.kind` = 'pipeline' and attributes.status = 'RUNNING'"
        ):
            self._settle_parent(run)
        return killed

    def close_parent(self, run_id: str, status: str | None = None) -> None:
        """End a parent, unless one of its stages is running or its workspace is held.

        Args:
            run_id: the parent.
            status: how it ended; by default as the worst of the last attempts of its stages.
        """
        with self.lock():
            self._settle_parent(self.client.get_run(run_id), status)

    def _settle_parent(self, parent: Run, status: str | None = None) -> None:
        workspace = parent.data.tags.get(WORKSPACE)
        if workspace is not None and hold.is_held(Path(workspace)):
            return
        last: dict[str, str] = {}
        for child in self._children(parent.info.run_id):  # newest first
            last.setdefault(child.data.tags["ranloom.stage"], child.info.status)
        if "RUNNING" in last.values():
            return
        worst = next((s for s in ("FAILED", "KILLED") if s in last.values()), "FINISHED")
        self.terminate(parent, status or worst)

    def terminate(self, run: Run, status: str) -> None:
        """End a run with a status; one that had ended so when it was looked up keeps its end."""
        if run.info.status != status:
            self.client.set_terminated(run.info.run_id, status=status)

    def fail(self, run: Run, status: str, reason: str) -> None:
        """End a run that did not finish, with the reason as a tag."""
        self.tag(run.info.run_id, "ranloom.error", reason[:5000])
        self.terminate(run, status)

    def tag(self, run_id: str, key: str, value: str) -> None:
        """Set one tag."""
        self.client.set_tag(run_id, key, value)

    def log_metrics(self, run_id: str, values: Iterable[tuple[str, float, int, int]]) -> None:
        """Log ``(name, value, time in ms, step)`` in batches; what is not finite is left out."""
        from mlflow.entities import Metric

        metrics = [Metric(_metric_name(n), v, t, s) for n, v, t, s in values if math.isfinite(v)]
        for i in range(0, len(metrics), _BATCH):
            self.client.log_batch(run_id, metrics=metrics[i : i + _BATCH])

    def log_latest(self, run_id: str, values: Mapping[str, float]) -> None:
        """Log single values, leaving out those that stand there already."""
        known = self.client.get_run(run_id).data.metrics
        now_ms = int(time.time() * 1000)
        self.log_metrics(
            run_id,
            [(n, v, now_ms, 0) for n, v in values.items() if known.get(_metric_name(n)) != v],
        )

    def _children(self, parent_id: str) -> list[Run]:
        return self._search(f"tags.`mlflow.parentRunId` = '{parent_id}'")

    def _search(self, filter_string: str) -> list[Run]:
        runs: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], filter_string, order_by=["start_time DESC"], page_token=token
            )
            runs.extend(page)
            token = page.token
            if not token:
                return runs


def _lock(folder: Path) -> BaseFileLock:
    return FileLock(folder / "store.lock", timeout=300)


def _metric_name(name: str) -> str:
    # MLflow allows letters, digits, _ - . space : and /.
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)
