"""Tables of the coexistence section: this run beside Tables 5 and 6 and Fig. 4c of WEAVER."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ranloom.report import names
from ranloom.report.data import ReportData
from ranloom.report.page import Grid

SCENARIOS = (
    "scenario_1",
    "scenario_1_scaled",
    "scenario_2",
    "scenario_2_scaled",
    "stress",
    "wideband",
)
CONTROLLERS = ("noctrl", "yinyangran", "weaver", "weaver_plus")  # constants stand in the figure
_PUBLISHED = ("scenario_1", "scenario_2")
_WITHIN = 0.25  # of a published ratio
_EQUAL = 1e-3  # of the larger value
_LEAST_OVER_YINYANGRAN, _LEAST_EFFICIENCY_PCT = 4.0, 80.0

# Constants in plain words, with what they were fitted to.
_FITTED = {
    "none": ("nothing", ""),
    "relaunch_us": ("relaunch time of the chain", "level of WEAVER's throughput"),
    "gemm_chain.tile_efficiency": ("tile efficiency of the chain", "60 chains in 120 s"),
    "checkpoint_us": ("time of an MPS checkpoint", "YinYangRAN's throughput"),
    "burst_share": ("share of clustered changes", "NoCtrl in scenario 2"),
}
_ASSUMED = {
    "none": "all as set",
    "bandwidth_share": "memory bandwidth left to training",
    "dispatch_us": "time between two waves of tiles",
    "jitter_sigma": "spread of tile times",
}

Cells = list[str | float | int | None]


def plain(scenario: str) -> str:
    """Name of a scenario in print."""
    return scenario.replace("_", " ")


def statements(data: ReportData) -> Grid:
    """What the paper states, and in which scenarios this run agrees."""

    def metric(name: str) -> float | None:
        return data.metric("replay_spare", name)

    def more(left: str, right: str, value: str, prefix: str = "") -> Callable[[str], int | None]:
        def compared(scenario: str) -> int | None:
            a, b = (metric(f"{prefix}{scenario}.{c}.{value}") for c in (left, right))
            if a is None or b is None:
                return None
            return 0 if abs(a - b) <= _EQUAL * max(a, b) else 1 if a > b else -1

        return compared

    def fewer(prefix: str) -> Callable[[str], int | None]:
        return more("noctrl", "weaver", "violations", prefix)

    def near(scenario: str) -> int | None:
        theirs = data.published["coexistence_useful_tflops"][scenario]
        ours = metric(f"synthetic.{scenario}.useful_ratio_weaver_over_noctrl")
        if ours is None:
            return None
        return 1 if abs(ours * theirs["noctrl"] / theirs["weaver"] - 1.0) <= _WITHIN else -1

    def at_least(name: str, least: float) -> Callable[[str], int | None]:
        def compared(scenario: str) -> int | None:
            value = metric(f"synthetic.{scenario}.{name}")
            return None if value is None else 1 if value >= least else -1

        return compared

    lossy = "with_loss_training_tflops"
    asked: list[tuple[str, str, Sequence[str], Callable[[str], int | None]]] = []
    for kind, prefix, scenarios in (
        ("own", "", SCENARIOS),
        ("synthetic", "synthetic.", _PUBLISHED),
    ):
        asked += [
            ("chain: WEAVER does more than NoCtrl", kind, scenarios,
             more("weaver", "noctrl", "useful_tflops", prefix)),
            ("chain: NoCtrl does more than YinYangRAN", kind, scenarios,
             more("noctrl", "yinyangran", "useful_tflops", prefix)),
            ("training: WEAVER does more than NoCtrl", kind, scenarios,
             more("weaver", "noctrl", "training_tflops", prefix)),
            ("training: NoCtrl does more than YinYangRAN", kind, scenarios,
             more("noctrl", "yinyangran", "training_tflops", prefix)),
            ("WEAVER has fewer violations than NoCtrl", kind, scenarios, fewer(prefix)),
        ]  # fmt: skip
    asked += [
        ("training, 0.2 s lost a change: WEAVER does more than NoCtrl", "synthetic", _PUBLISHED,
         more("weaver", "noctrl", lossy, "synthetic.")),
        (f"chain: WEAVER over NoCtrl within {100 * _WITHIN:g} % of Table 5", "synthetic",
         _PUBLISHED, near),
        (f"chain: WEAVER over YinYangRAN at least {_LEAST_OVER_YINYANGRAN:g}", "synthetic",
         _PUBLISHED, at_least("useful_ratio_weaver_over_yinyangran", _LEAST_OVER_YINYANGRAN)),
        (f"training: efficiency of WEAVER at least {_LEAST_EFFICIENCY_PCT:g} %", "synthetic",
         _PUBLISHED, at_least("weaver.efficiency_pct", _LEAST_EFFICIENCY_PCT)),
    ]  # fmt: skip
    rows: list[Cells] = []
    for text, traces, among, judge in asked:
        found = {s: judge(s) for s in among}
        rows.append(
            [
                text,
                traces,
                *(_listed(found, wanted) for wanted in (1, 0, -1)),
            ]
        )
    return Grid(
        "What WEAVER states, and the scenarios in which this run agrees.",
        ["statement", "traces", "holds in", "equal (0.1 %) in", "does not hold in"],
        rows,
    )


def _listed(found: Mapping[str, int | None], wanted: int) -> str:
    named = [plain(scenario) for scenario, sign in found.items() if sign == wanted]
    return "all" if len(named) == len(found) else ", ".join(named) or "–"


def table_5(data: ReportData) -> Grid:
    """Ratios of Table 5 on our own traces and on synthetic ones with the published statistics."""
    rows: list[Cells] = []
    for scenario in _PUBLISHED:
        theirs = data.published["coexistence_useful_tflops"][scenario]
        for other in ("noctrl", "yinyangran"):
            name = f"{scenario}.useful_ratio_weaver_over_{other}"
            rows.append(
                [
                    plain(scenario),
                    f"WEAVER over {names.title(other)}",
                    theirs["weaver"] / theirs[other],
                    data.metric("replay_spare", name),
                    data.metric("replay_spare", f"synthetic.{name}"),
                ]
            )
    header = ["scenario", "useful chain throughput", "published", "own traces", "synthetic traces"]
    return Grid("Table 5, ratios of useful throughput.", header, rows)


def table_6(data: ReportData) -> Grid:
    """Table 6 beside our own traces and the readings of synthetic ones."""
    theirs = data.published["l40s_training"]
    rows: list[Cells] = []
    for controller in ("weaver", "noctrl", "yinyangran"):
        drawn = f"synthetic.scenario_1.{controller}."
        for published, label, own in (
            ("efficiency_pct", "efficiency, %", "efficiency_pct"),
            ("tflops", "TFLOPS", "training_tflops"),
            ("tokens_per_s", "tokens a second", "tokens_per_s"),
            ("violation_events", "violations", "violations"),
        ):
            value = theirs[controller].get(published)
            keys = [f"scenario_1.{controller}.{own}", f"{drawn}{own}", f"{drawn}with_loss_{own}"]
            late = f"{drawn}unbounded_violations" if own == "violations" else ""
            rows.append(
                [
                    names.title(controller),
                    label,
                    None if value is None else float(value),
                    *(data.metric("replay_spare", name) for name in keys),
                    data.metric("replay_spare", late) if late else None,
                ]
            )
    header = [
        "controller",
        "training step",
        "published",
        "own traces",
        "synthetic traces",
        "and 0.2 s lost a change",
        "and tiles past the slot's end",
    ]
    return Grid("Table 6, scenario 1, by reading.", header, rows)


def figure_4c(data: ReportData) -> Grid:
    """A bursty and a stable reservation."""
    theirs = data.published["motivation_timeline"]
    rows: list[Cells] = []
    for name in ("bursty", "stable"):
        ours = [
            data.metric("replay_spare", f"steadiness.{name}.{value}")
            for value in ("mean_sm", "transitions", "whole_products_tflops", "tiles_tflops")
        ]
        rows.append([name, *ours[:2], float(theirs[name]["tflops"]), *ours[2:]])
    header = [
        "reservation",
        "mean SMs",
        "changes",
        "published TFLOPS",
        "products that start over",
        "tiles that survive",
    ]
    return Grid(
        "Fig. 4c, training beside a bursty and a stable reservation. Nothing is fitted.",
        header,
        rows,
    )


def fitted(data: ReportData) -> Grid:
    """What the ratios of Table 5 are without each fitted constant."""
    columns = data.table("replay_spare.sensitivity", workload="gemm_chain")
    keys = ("weaver_tflops", "weaver_over_noctrl", "weaver_over_yinyangran")
    rows: list[Cells] = [
        [*_FITTED.get(constant, (constant, "")), scenario, *values]
        for constant, _, scenario, *values in _changed(columns, keys)
    ]
    header = [
        "taken out",
        "fitted to (Table 5)",
        "scenario",
        "WEAVER TFLOPS",
        "over NoCtrl",
        "over YinYangRAN",
    ]
    return Grid("The four fitted constants: the chain without each of them.", header, rows)


def assumed(data: ReportData) -> Grid:
    """What assumed constants do to the training step."""
    columns = data.table("replay_spare.sensitivity", workload="training_step")
    keys = ("weaver_tflops", "weaver_efficiency_pct", "noctrl_violations", "weaver_violations")
    rows: list[Cells] = [
        [_ASSUMED.get(constant, constant), "" if constant == "none" else setting, scenario, *values]
        for constant, setting, scenario, *values in _changed(columns, keys)
    ]
    header = [
        "assumed constant",
        "changed",
        "scenario",
        "WEAVER TFLOPS",
        "efficiency, %",
        "violations, NoCtrl",
        "violations, WEAVER",
    ]
    return Grid(
        "Assumed constants: the training step with each of them halved and doubled.", header, rows
    )


def _changed(
    columns: Mapping[str, np.ndarray], keys: Sequence[str]
) -> list[tuple[str, str, str, *tuple[float, ...]]]:
    """Rows of the sensitivity table: constant, setting, scenario, values."""
    return [
        (
            str(columns["constant"][i]),
            str(columns["setting"][i]),
            plain(columns["scenario"][i]),
            *(columns[name][i].item() for name in keys),
        )
        for i in range(columns["constant"].size)
    ]


def checks(data: ReportData) -> Grid:
    """What the random-projection check finds (App. F)."""
    rows: list[Cells] = []
    for name in ("float32", "bfloat16"):
        rates = {
            value: data.metric("replay_spare", f"checks.{name}.{value}_pct")
            for value in (
                "detected",
                "bit_flip_detected",
                "bit_flip_within_rounding",
                "bit_flip_below_tolerance",
                "bit_flip_above_tolerance_detected",
                "pattern_detected",
                "false_alarm",
            )
        }
        rows.append([name, *rates.values()])
    header = [
        "type",
        "wrong entry found, %",
        "bit flips found, %",
        "flips within rounding, %",
        "flips below tolerance, %",
        "other flips found, %",
        "crafted pattern found, %",
        "false alarms, %",
    ]
    return Grid("Result checks: what random projections of a product find.", header, rows)


def beside_each_trace(data: ReportData, workload: str) -> Grid:
    """One workload beside each trace, under the controller's own mechanism."""
    columns = data.table("replay_spare.coexistence", own=True, workload=workload)
    chain = workload == "gemm_chain"
    keys = [
        ("reservation_mean_sm", "SMs reserved"),
        ("transitions", "changes"),
        ("useful_tflops", "useful TFLOPS"),
        ("executed_tflops", "with lost work"),
        ("efficiency_pct", "efficiency, %"),
        ("w_per_tflops", "W a TFLOPS"),
    ]
    if not chain:
        keys += [
            ("tokens_per_s", "tokens a second"),
            ("violations", "violations"),
            ("violation_ms", "their time, ms"),
        ]
    rows: list[Cells] = [
        [
            plain(columns["scenario"][i]),
            names.title(columns["controller"][i]),
            *(_finite(columns[name][i].item()) for name, _ in keys),
        ]
        for i in range(columns["scenario"].size)
        if columns["scenario"][i] in SCENARIOS and columns["controller"][i] in CONTROLLERS
    ]
    device = columns["device"][0] if columns["device"].size else "–"
    what = "Chain of products" if chain else "Training step"
    return Grid(
        f"{what} beside each of our own traces, on {device}, under the controller's own sharing "
        "mechanism.",
        ["scenario", "controller", *(label for _, label in keys)],
        rows,
    )


def _finite(value: float) -> float | None:
    """The value, or nothing where it is a quotient by zero."""
    return value if np.isfinite(value) else None
