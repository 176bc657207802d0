"""Whether a run trained what it should have: weights and samples by independent evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ranloom.training.checkpoint import Checkpoint
from ranloom.training.reference import ReferenceRun, train_reference, weights_relative_error
from ranloom.training.runtime.audit import Audit, audit
from ranloom.training.runtime.setup import TrainingSetup


@dataclass(frozen=True)
class Proof:
    """What can be said of a finished run without believing its coordinator.

    Args:
        weights: final weights, put together from the sites' copies.
        reference: one-process training on the same samples, which follow from the seed.
        weights_rel_error: relative error in norm, of the worst combination of the sites' copies.
        copies_differ: first layers of stages whose copies are not equal, bit by bit.
        audit: what the sites' journals prove.
        samples_lost: samples of the run that are not in the weights.
        samples_doubled: samples that are in the weights once too often.
    """

    weights: dict[str, Tensor]
    reference: ReferenceRun
    weights_rel_error: float
    copies_differ: list[int]
    audit: Audit
    samples_lost: int
    samples_doubled: int

    @property
    def holds(self) -> bool:
        """Whether every sample is in the weights once and they are those of one process."""
        return (
            self.weights_rel_error <= 1e-12
            and self.samples_lost == self.samples_doubled == 0
            and not self.audit.faults
            and not self.copies_differ
        )


def prove(
    setup: TrainingSetup,
    micro_batches: int,
    copies: Sequence[Checkpoint],
    journals: Iterable[Sequence[Mapping[str, Any]]],
) -> Proof:
    """Count samples from the journals and train the same in this process.

    Args:
        setup: what was trained.
        micro_batches: micro-batches that the run had to consume, each once.
        copies: final weights of every site that holds a stage.
        journals: records of every site process, also of those that were killed.
    """
    corpus = setup.corpus()
    order = setup.order(corpus)
    version = max(copy.version for copy in copies)
    found = audit(journals, version, setup.model.layers)
    expected = Counter(
        sample for number in range(micro_batches) for sample in order.sample_ids(number)
    )
    lost, doubled = found.lost_and_doubled(expected)
    reference = train_reference(
        setup.model, setup.optimizer, corpus, order, found.micro_batches, setup.seed
    )
    weights, error, differing = _compare(
        [copy for copy in copies if copy.version == version], reference.weights
    )
    return Proof(weights, reference, error, differing, found, lost, doubled)


def _compare(
    copies: Iterable[Checkpoint], reference: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], float, list[int]]:
    """Weights put together, the worst relative error, stages whose copies differ."""
    weights: dict[str, Tensor] = {}
    differing: set[int] = set()
    for copy in copies:
        for name, tensor in copy.weights.items():
            if not torch.equal(weights.setdefault(name, tensor), tensor):
                differing.add(copy.layers[0])
    # Each copy replaces the others once, so that every copy is compared.
    error = max(weights_relative_error({**weights, **copy.weights}, reference) for copy in copies)
    return weights, error, sorted(differing)
