"""Stage ``report``: one page, published figures beside those of this run."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from pipeline.io import Inputs, Outputs
from pipeline.stage import (
    File,
    Folder,
    FromRepo,
    FromStage,
    MeasuredOf,
    MetricsOf,
    Result,
    Stage,
    StageParams,
)

STAGES = (
    "profile_lut",
    "calibrate_scheduler",
    "generate_traces",
    "compare_controllers",
    "replay_spare",
    "aggregate_updates",
    "plan_windows",
    "train_sites",
)
TABLES = (
    ("profile_lut", "latency"),
    ("profile_lut", "lut"),
    ("profile_lut", "characterisation"),
    ("profile_lut", "reservation"),
    ("profile_lut", "cards"),
    ("calibrate_scheduler", "trials"),
    ("calibrate_scheduler", "settings"),
    ("generate_traces", "timeline"),
    ("generate_traces", "cells"),
    ("generate_traces", "reservations"),
    ("generate_traces", "scenarios"),
    ("generate_traces", "offline"),
    ("generate_traces", "distributions"),
    ("generate_traces", "shared_gpu"),
    ("compare_controllers", "verdicts"),
    ("compare_controllers", "transition_counts"),
    ("compare_controllers", "weaver_variants"),
    ("replay_spare", "coexistence"),
    ("replay_spare", "sensitivity"),
    ("aggregate_updates", "transfers"),
    ("aggregate_updates", "updates"),
    ("aggregate_updates", "quality"),
    ("plan_windows", "windows"),
    ("plan_windows", "sweep"),
    ("plan_windows", "jitter"),
    ("plan_windows", "links"),
    ("train_sites", "steps"),
    ("train_sites", "timeline"),
    ("train_sites", "scaling"),
    ("train_sites", "orderings"),
)
MEASURED = ("train_sites",)


class Params(StageParams):
    """Parameters of ``report``."""

    title: str = Field(min_length=1, max_length=200, description="heading of the page")
    lead: str = Field(min_length=1, max_length=2000, description="first paragraph")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Compare, draw, write."""
    # Imported here: every `check` reads this declaration, and drawing takes a second to import.
    from ranloom.report import style
    from ranloom.report.data import ReportData, load_published
    from ranloom.report.document import compose
    from ranloom.report.fidelity import COMPARISONS, compare, metrics
    from ranloom.report.page import write
    from ranloom.report.sections.training_live import NOTES as LIVE_NOTES

    data = ReportData(
        metrics={stage: inputs.json(f"metrics_{stage}") for stage in STAGES},
        measured={stage: _measured(inputs.path(f"measured_{stage}")) for stage in MEASURED},
        tables={
            **{f"{s}.{o}": inputs.path(f"{s}_{o}") for s, o in TABLES},
            LIVE_NOTES: inputs.path("measured_train_sites") / "notes.parquet",
        },
        published=load_published(inputs.path("published")),
    )
    rows = compare(data, COMPARISONS)
    with style.styled():
        headlines, sections = compose(data, rows)
        write(
            outputs.path("index"),
            outputs.path("figures"),
            inputs.path("template"),
            params.title,
            params.lead,
            headlines,
            sections,
        )
    found = [row.ratio for row in rows if row.ratio is not None]
    return Result(
        metrics={
            "fidelity": metrics(rows),
            "compared": len(rows),
            "computed": sum(row.reproduced is not None for row in rows),
            "within_25_pct": sum(abs(ratio - 1) <= 0.25 for ratio in found),
        }
    )


def _measured(folder: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return document


STAGE = Stage(
    name="report",
    title="Published figures beside those of this run",
    params=Params,
    inputs={
        **{f"metrics_{stage}": MetricsOf(stage) for stage in STAGES},
        **{f"measured_{stage}": MeasuredOf(stage) for stage in MEASURED},
        **{f"{s}_{o}": FromStage(s, o) for s, o in TABLES},
        "published": FromRepo("data/published/weaver.yaml"),
        "template": FromRepo("ranloom/report/page.html.j2"),
    },
    outputs={
        "index": File("index.html", "the report, one file that opens offline"),
        "figures": Folder("figures", "its figures as PNG"),
    },
    run=run,
    headline=("compared", "computed", "within_25_pct"),
)
