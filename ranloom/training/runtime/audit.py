"""What really went into the weights, counted from the journals of the sites alone.

The chain of evidence: the final version was made by applying a total to an earlier version, and so
on back to the seed (across roll-backs through the checkpoint that they restored). Each applied
total names its reduction. The root of that reduction wrote down whose sums it added; each of these
sites wrote down which micro-batches were in its sum, and for each of them, when it merged it,
the samples it had computed. Neither the ledger nor any message of the coordinator is consulted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Audit:
    """What the journals prove about one line of weights.

    Args:
        steps: steps in the line, oldest first.
        micro_batches: micro-batches in each of these steps, ascending.
        samples: how often each sample is in the weights.
        faults: one line each: stages that hold different samples, layers that were not updated,
            totals with different bytes, micro-batches merged twice, evidence that is missing.
    """

    steps: list[int]
    micro_batches: dict[int, list[int]]
    samples: Counter[int]
    faults: list[str]

    def lost_and_doubled(self, expected: Mapping[int, int]) -> tuple[int, int]:
        """Samples that are in the weights too rarely, and too often.

        Args:
            expected: how often each sample has to be in them.
        """
        lost = sum(max(0, times - self.samples[sample]) for sample, times in expected.items())
        doubled = sum(
            max(0, times - expected.get(sample, 0)) for sample, times in self.samples.items()
        )
        return lost, doubled


def audit(journals: Iterable[Sequence[Record]], final_version: int, layers: int) -> Audit:
    """Follow the evidence from the final weights back to the seed.

    Args:
        journals: records of every site process, also of those that were killed.
        final_version: model version of the final weights.
        layers: decoder layers of the model.
    """
    evidence = _Evidence()
    for records in journals:
        for record in records:
            evidence.add(record)
    faults = list(evidence.faults)
    steps: list[int] = []
    micro_batches: dict[int, list[int]] = {}
    samples: Counter[int] = Counter()
    for updates in evidence.line(final_version, faults):
        step = int(updates[0]["step"])
        by_stage = {}
        covered: set[int] = set()
        for update in updates:
            by_stage[update["stage"]] = evidence.in_total(update, faults)
            covered.update(range(update["first_layer"], update["end_layer"]))
        if covered != set(range(layers)):
            faults.append(f"step {step}: layers {sorted(set(range(layers)) - covered)} not updated")
        contents = [sorted(content) for content in by_stage.values()]
        if any(content != contents[0] for content in contents):
            faults.append(f"step {step}: the stages hold different samples")
        steps.append(step)
        micro_batches[step] = sorted(number for number, _ in contents[0])
        samples.update(sample for _, ids in contents[0] for sample in ids)
    steps.reverse()
    return Audit(steps, micro_batches, samples, faults)


Content = list[tuple[int, tuple[int, ...]]]  # (micro-batch, its samples)
Merged = dict[int, tuple[int, ...]]


class _Evidence:
    """The journals, indexed."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._merged: dict[tuple[int, int, int, int], Merged] = defaultdict(dict)
        self._contributed: dict[tuple[int, int, str], Content] = {}
        self._reduced: dict[str, list[tuple[int, int]]] = {}
        self._applied: dict[int, list[Record]] = defaultdict(list)
        self._restored: dict[int, int] = {}
        self._seeded: set[int] = set()

    def add(self, record: Record) -> None:
        what = record["what"]
        process = (record.get("site", -1), record.get("incarnation", -1))
        if what == "merged":
            sums = self._merged[(*process, record["step"], record["stage"])]
            if record["micro_batch"] in sums:
                self.faults.append(f"site {process} merged {record['micro_batch']} twice")
            sums[record["micro_batch"]] = tuple(record["samples"])
        elif what == "contributed":
            sums = self._merged[(*process, record["step"], record["stage"])]
            self._contributed[(*process, record["reduction"])] = [
                (number, sums[number]) for number in record["micro_batches"]
            ]
        elif what == "reduced":
            self._reduced[record["reduction"]] = [(site, inc) for site, inc in record["parts"]]
        elif what == "applied":
            self._applied[record["model_version"]].append(record)
        elif what == "installed" and record["weights_from"] == "checkpoint":
            self._restored[record["model_version"]] = record["checkpoint_version"]
        elif what == "installed" and record["weights_from"] == "seed":
            self._seeded.add(record["model_version"])

    def line(self, version: int, faults: list[str]) -> Iterable[list[Record]]:
        """Updates of each step, newest first, from ``version`` back to the initial weights."""
        while True:
            updates = self._applied.get(version)
            if updates:
                yield updates
                version = updates[0]["from_version"]
            elif version in self._restored:
                version = self._restored[version]
            else:
                if version not in self._seeded:
                    faults.append(f"nothing tells where model version {version} came from")
                return

    def in_total(self, update: Record, faults: list[str]) -> Content:
        """Micro-batches and samples of the total that an update applied."""
        same_stage = [
            other
            for other in self._applied[update["model_version"]]
            if other["stage"] == update["stage"]
        ]
        if len({(other["reduction"], other["digest"]) for other in same_stage}) != 1:
            faults.append(f"step {update['step']}: copies of stage {update['stage']} differ")
        reduction = update["reduction"]
        if reduction not in self._reduced:
            faults.append(f"step {update['step']}: no root recorded reduction {reduction}")
            return []
        content: Content = []
        for site, incarnation in self._reduced[reduction]:
            sums = self._contributed.get((site, incarnation, reduction))
            if sums is None:
                faults.append(f"reduction {reduction}: site {site} recorded no sum")
            else:
                content += sums
        return content
