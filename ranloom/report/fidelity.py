"""Published values beside those of a run, one row a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ranloom.report.data import ReportData, lookup

_NAMES = {
    "noctrl": "NoCtrl",
    "yinyangran": "YinYangRAN",
    "weaver": "WEAVER",
    "confidant": "Confidant",
}


@dataclass(frozen=True)
class Comparison:
    """Where a published value and its counterpart are found.

    Args:
        figure: figure or table of the paper.
        label: what the value is.
        published: dotted name in the published figures; ``[i]`` as a part picks from a list.
        stage: stage that computes the counterpart.
        metric: dotted metric name of that stage.
        unit: unit of both.
    """

    figure: str
    label: str
    published: str
    stage: str
    metric: str
    unit: str

    @property
    def key(self) -> str:
        """Name in the metrics of the report: the dotted published name."""
        return self.published


@dataclass(frozen=True)
class Row:
    """One compared value.

    Args:
        comparison: what is compared.
        published: value in the paper.
        reproduced: value of this run; ``None`` where the run did not produce it.
    """

    comparison: Comparison
    published: float
    reproduced: float | None

    @property
    def ratio(self) -> float | None:
        """Reproduced over published; ``None`` where either is missing or published is 0."""
        if self.reproduced is None or self.published == 0:
            return None
        return self.reproduced / self.published


def compare(data: ReportData, comparisons: Sequence[Comparison]) -> list[Row]:
    """Look up both sides of every comparison.

    Raises:
        KeyError: a comparison names a value that the published figures do not have.
    """
    return [
        Row(c, _published(data.published, c.published), data.metric(c.stage, c.metric))
        for c in comparisons
    ]


def metrics(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Metrics of the report: published, reproduced and ratio by published name."""
    return {
        row.comparison.key: {
            "published": row.published,
            **({"reproduced": row.reproduced} if row.reproduced is not None else {}),
            **({"ratio": row.ratio} if row.ratio is not None else {}),
        }
        for row in rows
    }


def _published(tree: Mapping[str, Any], name: str) -> float:
    path, _, index = name.partition("[")
    value = lookup(tree, path)
    if index:
        value = value[int(index.rstrip("]"))]
    if not isinstance(value, int | float):
        raise KeyError(f"the published figures have no value {name!r}")
    return float(value)


def _table4() -> Iterator[Comparison]:
    for scenario in ("scenario_1", "scenario_2"):
        for controller in ("noctrl", "yinyangran", "weaver"):
            for theirs, ours, what, unit in (
                ("mean_sm", "mean_sm", "mean reservation", "SM"),
                ("transitions", "transitions", "changes of the reservation", ""),
                ("deadline_met_pct", "harq_met_pct", "decoded in time", "%"),
            ):
                if controller == "yinyangran" and theirs == "deadline_met_pct":
                    continue
                yield Comparison(
                    "Table 4",
                    f"{scenario.replace('_', ' ')}, {_NAMES[controller]}: {what}",
                    f"stability.{scenario}.{controller}.{theirs}",
                    "generate_traces",
                    f"{scenario}.{controller}.{ours}",
                    unit,
                )


def _table3() -> Iterator[Comparison]:
    for i, controller in enumerate(("weaver", "noctrl")):
        for theirs, ours, what, unit in (
            ("throughput_sum_mbps", "throughput_mbps", "throughput", "Mbit/s"),
            ("delay_mean_ms", "delay_mean_ms", "mean delay", "ms"),
            ("delay_p95_ms", "delay_p95_ms", "p95 delay", "ms"),
            ("jitter_mean_ms", "jitter_ms", "jitter", "ms"),
            ("packet_loss_pct", "loss_pct", "packet loss", "%"),
        ):
            yield Comparison(
                "Table 3",
                f"stress, {_NAMES[controller]}: {what}",
                f"application_kpis.d_itg_three_ues.{theirs}[{i}]",
                "generate_traces",
                f"stress.{controller}.{ours}",
                unit,
            )


def _table5() -> Iterator[Comparison]:
    for scenario in ("scenario_1", "scenario_2"):
        for controller in ("yinyangran", "noctrl", "weaver"):
            yield Comparison(
                "Table 5",
                f"{scenario.replace('_', ' ')}, {_NAMES[controller]}: useful throughput",
                f"coexistence_useful_tflops.{scenario}.{controller}",
                "replay_spare",
                f"{scenario}.{controller}.useful_tflops",
                "TFLOPS",
            )


def _table6() -> Iterator[Comparison]:
    for controller in ("yinyangran", "noctrl", "weaver"):
        for theirs, ours, what, unit in (
            ("efficiency_pct", "efficiency_pct", "share of spare SM-time turned into work", "%"),
            ("tokens_per_s", "tokens_per_s", "training throughput", "token/s"),
            ("tflops", "training_tflops", "training throughput", "TFLOPS"),
            ("violations_pct", "violation_pct", "violations per decode start", "%"),
        ):
            if controller == "yinyangran" and theirs == "violations_pct":
                continue
            yield Comparison(
                "Table 6",
                f"{_NAMES[controller]}: {what}",
                f"l40s_training.{controller}.{theirs}",
                "replay_spare",
                f"scenario_1.{controller}.{ours}",
                unit,
            )


def _figure4() -> Iterator[Comparison]:
    for name in ("bursty", "stable"):
        yield Comparison(
            "Fig. 4c",
            f"training beside a {name} reservation, products not tiled",
            f"motivation_timeline.{name}.tflops",
            "replay_spare",
            f"steadiness.{name}.whole_products_tflops",
            "TFLOPS",
        )


def _training() -> Iterator[Comparison]:
    for model in ("opt-1.3b", "opt-6.7b"):
        for system in ("weaver", "confidant"):
            yield Comparison(
                "Section 7.2.1",
                f"{model.upper()}, {_NAMES[system]}: throughput",
                f"testbed_training.{model}.{system}_tokens_per_s",
                "train_sites",
                f"sim.{model}.{system}.tokens_per_s",
                "token/s",
            )
    yield Comparison(
        "Section 7.2.2",
        "capacity shifts handled by AIR",
        "dynamic_capacity.air_handled_pct",
        "train_sites",
        "dynamic.air_handled_pct",
        "%",
    )


def _appendix_a() -> Iterator[Comparison]:
    yield Comparison(
        "App. A.1",
        "arithmetic intensity of BG1, Z = 128",
        "roofline.intensity_ops_per_byte",
        "profile_lut",
        "roofline.bg1_z128_ops_per_byte",
        "op/B",
    )
    yield Comparison(
        "Section 3.1",
        "largest arithmetic utilisation",
        "ldpc_characterisation.text_only.max_arithmetic_utilisation_pct",
        "profile_lut",
        "characterisation.max_acu_pct",
        "%",
    )
    yield Comparison(
        "Section 3.1",
        "SM utilisation of the worst case",
        "ldpc_characterisation.text_only.worst_sm_utilisation_pct",
        "profile_lut",
        "characterisation.max_smu_pct",
        "%",
    )
    yield Comparison(
        "Section 3.1",
        "SM utilisation that the busiest site leaves",
        "ldpc_characterisation.text_only.busiest_site_spare_pct",
        "generate_traces",
        "macro.busiest_site_spare_smu_pct",
        "%",
    )
    for sm in ("48", "16"):
        yield Comparison(
            "App. A.2",
            f"slot time at {sm} SMs, MCS 15, 162 PRB",
            f"reservation_effect.{sm}.latency_us",
            "profile_lut",
            f"reservation.slot_us_{sm}",
            "us",
        )


COMPARISONS: tuple[Comparison, ...] = (
    *_appendix_a(),
    *_figure4(),
    *_table3(),
    *_table4(),
    *_table5(),
    *_table6(),
    *_training(),
)
"""Published values with a counterpart in the chain, in the order of the paper."""
