"""The whole report: headline numbers, published values, sections in the order of the chain."""

from __future__ import annotations

from collections.abc import Sequence

from ranloom.report.data import ReportData
from ranloom.report.fidelity import Row
from ranloom.report.page import Grid, Headline, Section
from ranloom.report.sections import (
    coexistence,
    federated,
    lut,
    promise,
    training,
    transport,
    uplink,
)


def compose(data: ReportData, rows: Sequence[Row]) -> tuple[list[Headline], list[Section]]:
    """Headlines and sections of the report.

    Args:
        data: metrics, tables and published figures.
        rows: published values beside those of this run.
    """
    sections = [
        _fidelity(rows),
        lut.section(data),
        uplink.section(data),
        promise.section(data),
        coexistence.section(data),
        federated.section(data),
        transport.section(data),
        training.section(data),
    ]
    return _headlines(data), sections


def _headlines(data: ReportData) -> list[Headline]:
    lut_metrics = data.metrics["profile_lut"]
    federated_metrics = data.metrics["aggregate_updates"]
    found = [
        Headline(
            f"{lut_metrics['model_cells_matched']} / {lut_metrics['cells_published']}",
            "published lookup-table cells matched by the latency model",
        )
    ]
    busiest = data.metric("generate_traces", "macro.busiest_site_spare_reservation_pct")
    if busiest is not None:
        found.append(Headline(f"{busiest:.0f} %", "of the SMs not reserved, busiest site and hour"))
    fewer = _ratio(data, "generate_traces", "scenario_1_scaled.{}.transitions")
    if fewer is not None:
        found.append(
            Headline(
                f"{fewer:.1f}x", "fewer SM transitions, WEAVER against NoCtrl, scenario 1 scaled"
            )
        )
    flows = federated_metrics["flows_per_ue"] / max(federated_metrics["flows_aggregated"], 1)
    found.append(Headline(f"{flows:.0f}x", "fewer transport flows by aggregation at the gNB"))
    error = data.metric("train_sites", "real.weights_rel_error")
    if error is not None:
        found.append(Headline(f"{error:.0e}", "weights of the live run against one-process SGD"))
    return found


def _ratio(data: ReportData, stage: str, pattern: str) -> float | None:
    theirs, ours = (data.metric(stage, pattern.format(c)) for c in ("noctrl", "weaver"))
    return theirs / ours if theirs is not None and ours else None


def _fidelity(rows: Sequence[Row]) -> Section:
    return Section(
        "fidelity",
        "Published values beside this run",
        (
            "Published values for which the chain computes a counterpart, with what this run "
            "found. A ratio of 1 is agreement. The few constants that are fitted to published "
            "values are named in their sections; no other gap is tuned away, and the sections say "
            "where the gaps come from.",
        ),
        grids=(
            Grid(
                "Values of the WEAVER paper.",
                ["where", "what", "unit", "published", "this run", "ratio"],
                [
                    [
                        row.comparison.figure,
                        row.comparison.label,
                        row.comparison.unit,
                        row.published,
                        row.reproduced,
                        row.ratio,
                    ]
                    for row in rows
                ],
            ),
        ),
    )
