"""What late updates do to the model: accuracy against simulated time for four strategies.

A small decoder is fine-tuned by federated LoRA on texts that are not identically distributed:
slow devices hold labels that fast ones hardly see. Updates travel through the simulated uplink
and the gNBs' aggregators, so what is late, carried over or lost is what the network makes of it.

``wait``: a round ends when every update is in. The other three cut off on a timetable:
``drop`` forgets late updates, ``carry_over`` counts them in the next round, ``carry_discount``
likewise with less weight. Averaging LoRA factors is not averaging their products (FedEx-LoRA,
arXiv 2410.09432); all four strategies average factors, as flat FedAvg does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.federated.cutoff import CutOff
from ranloom.federated.experiment import JobSetup, Network, chunk_bytes
from ranloom.federated.hub import Hub, flat_average, relative_error
from ranloom.federated.lora_model import SmallOpt, SmallShape
from ranloom.federated.payload import Payload, decode, encode, payload_bytes
from ranloom.federated.radio import Uploads, simulate_uploads
from ranloom.federated.replay import replay_job
from ranloom.federated.rounds import Behaviour, Population, draw_population
from ranloom.federated.text_task import TextTask, split_by_class
from ranloom.federated.wave import Wave

STRATEGIES = ("wait", "drop", "carry_over", "carry_discount")
_POPULATION, _SHARES, _BATCHES = 1, 2, 3


@dataclass(frozen=True)
class Training:
    """Local training.

    Args:
        steps: of a round.
        rows: of a batch.
        rate: Adam's.
        skew: share of a UE's rows whose label belongs to its device class.
        slow_labels: labels that belong to the slowest class.
    """

    steps: int
    rows: int
    rate: float
    skew: float
    slow_labels: int


@dataclass(frozen=True)
class Curve:
    """One strategy with one seed.

    Args:
        strategy: one of :data:`STRATEGIES`.
        seed: which repetition.
        time_s: when the model of each row was ready, from 0.
        accuracy: of all labels.
        slow_accuracy: of the labels that slow devices hold.
        updates: counted in that round.
        round_s: mean duration of a round.
        worst_error: largest deviation of a round's average from flat FedAvg over its updates.
    """

    strategy: str
    seed: int
    time_s: tuple[float, ...]
    accuracy: tuple[float, ...]
    slow_accuracy: tuple[float, ...]
    updates: tuple[int, ...]
    round_s: float
    worst_error: float

    def at(self, time_s: float) -> tuple[float, float]:
        """Accuracy and slow-label accuracy at a time: mean of the two newest models.

        Where a slow UE's update takes more than a round it is in every second average, and
        models swing between rounds with and without it.
        """
        ready = sum(t <= time_s + 1e-9 for t in self.time_s)
        newest = slice(max(0, ready - 2), ready)
        return float(np.mean(self.accuracy[newest])), float(np.mean(self.slow_accuracy[newest]))


def run_strategy(
    strategy: str,
    setup: JobSetup,
    network: Network,
    behaviour: Behaviour,
    training: Training,
    task: TextTask,
    model: SmallOpt,
    seed: Sequence[int],
    repetition: int,
) -> Curve:
    """Train with one strategy until the last round of the timetable is over.

    Args:
        strategy: one of :data:`STRATEGIES`.
        setup: the job on a timetable; its period is also the cut-off.
        network: the gNBs.
        behaviour: of the UEs.
        training: local training.
        task: texts.
        model: frozen base.
        seed: entropy; the same for all strategies that are compared.
        repetition: number of the seed, for the result.

    Raises:
        InputError: unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise InputError("quality.strategy", strategy, f"allowed: {', '.join(STRATEGIES)}")
    run = _Study(strategy, setup, network, behaviour, training, task, model, seed)
    return run.curve(repetition)


class _Study:
    """The global model, and the updates that UEs compute from it."""

    def __init__(
        self,
        strategy: str,
        setup: JobSetup,
        network: Network,
        behaviour: Behaviour,
        training: Training,
        task: TextTask,
        model: SmallOpt,
        seed: Sequence[int],
    ) -> None:
        waits = strategy == "wait"
        job = setup.job
        self.strategy, self.setup, self.network = strategy, setup, network
        self.training, self.task, self.model, self.seed = training, task, model, list(seed)
        self.horizon_s = job.first_begin_s + job.rounds * job.period_s
        behaviour = replace(
            behaviour,
            give_up=strategy == "drop",
            until_s=self.horizon_s if waits else 0.0,
        )
        self.population: Population = draw_population(
            [job], len(network.names), network.neighbours, behaviour, [*seed, _POPULATION]
        )
        self.uploads: Uploads = simulate_uploads(network.rates, self.population.plan)
        layout = model.shape.layout()
        rule = CutOff("quorum", 0.0, math.inf, 1.0, 0.0)
        self.config = replace(
            setup.config,
            layout=layout,
            chunk_bytes=chunk_bytes(setup.update_dtype, layout),
            staging_bytes=payload_bytes(setup.update_dtype, layout.elements)
            * max(1, len(self.population.names)),
            cut_off=rule if waits else CutOff("fixed", 0.0, job.period_s, 1.0, 0.0),
            wave_max_s=math.inf,
            stall_s=math.inf,
            late="carry_over" if waits else strategy,
        )
        slow_class = int(np.argmax([c.median_s for c in behaviour.classes]))
        self.shares = split_by_class(
            task,
            self.population.n_k,
            self.population.ue_class == slow_class,
            training.slow_labels,
            training.skew,
            [*seed, _SHARES],
        )
        self.factors = model.initial_factors(int(seed[-1]))
        self.updates: dict[tuple[int, int], Payload] = {}
        self.hub = Hub(layout.elements, self.config.arithmetic, self.config.fraction_bits)
        self.merged = 0
        self.worst_error = 0.0
        self.points: list[tuple[float, float, float, int]] = []

    def curve(self, repetition: int) -> Curve:
        self.test(0.0, 0)
        replay = replay_job(
            self.population,
            self.uploads,
            0,
            self.config,
            self.network.names,
            self.setup.update_dtype,
            lambda ue, round_index: self.updates[ue, round_index],
            np.zeros(self.uploads.outcome.shape, np.bool_),
            1.0,
            self.before_round,
        )
        begun = np.flatnonzero(np.isfinite(self.uploads.begin_s[0]))
        closes = [w.closed_s for w in replay.waves if w.round == begun[-1]]
        last_s = max([self.horizon_s, *closes] if self.strategy != "wait" else closes, default=0.0)
        self.advance(int(begun[-1]), replay.waves, last_s)
        first_s = float(self.uploads.begin_s[0, 0])
        time_s, accuracy, slow_accuracy, updates = zip(*self.points, strict=True)
        return Curve(
            self.strategy,
            repetition,
            time_s,
            accuracy,
            slow_accuracy,
            updates,
            (last_s - first_s) / len(begun),
            self.worst_error,
        )

    def before_round(self, round_index: int, waves: Sequence[Wave]) -> None:
        """Finish the last round, then let this round's UEs train."""
        if round_index:
            now_s = float(self.uploads.begin_s[0, round_index])
            self.advance(round_index - 1, waves, now_s)
        members = np.flatnonzero(self.uploads.gnb[:, round_index] >= 0)
        if not members.size:
            return
        steps, rows = self.training.steps, self.training.rows
        picked = np.stack(
            [
                np.random.default_rng(
                    np.random.SeedSequence([*self.seed, _BATCHES, int(ue), round_index])
                ).choice(self.shares[ue], (steps, rows))
                for ue in members
            ],
            axis=1,
        )
        changes = self.model.train(
            self.factors,
            self.task.train[picked],
            self.task.train_labels[picked],
            self.task.labels,
            self.training.rate,
        )
        for ue, change in zip(members, changes, strict=True):
            self.updates[int(ue), round_index] = encode(change, self.setup.update_dtype)

    def advance(self, round_index: int, waves: Sequence[Wave], now_s: float) -> None:
        """Apply the average of a round, and test."""
        for wave in waves:
            if wave.round == round_index:
                self.hub.merge(wave)
        members = self.hub.updates(round_index) if round_index in self.hub.rounds() else []
        if members:
            average = self.hub.average(round_index)
            self.compare(round_index, members, average)
            self.factors = self.factors + average
        self.test(now_s, len(members))

    def compare(
        self, round_index: int, members: Sequence[str], average: NDArray[np.float64]
    ) -> None:
        """The hub's average beside flat FedAvg over the same updates."""
        number = {name: ue for ue, name in enumerate(self.population.names)}
        alpha = self.config.alpha if self.config.late == "carry_discount" else 0.0
        values, weights = [], []
        for update_id in members:
            _, trained_for, name = update_id.split("/")
            ue, of_round = number[name], int(trained_for)
            n_k = float(self.population.n_k[ue])
            values.append(decode(self.updates[ue, of_round]))
            weights.append(round(n_k * (1.0 + round_index - of_round) ** -alpha * 2**20) / 2**20)
        error = relative_error(average, flat_average(values, weights))
        self.worst_error = max(self.worst_error, error)

    def test(self, now_s: float, updates: int) -> None:
        """Accuracy on the test texts."""
        answers = self.model.predict(self.factors, self.task.test, self.task.labels)
        right = answers == self.task.test_labels
        slow = self.task.test_labels >= self.task.labels - self.training.slow_labels
        self.points.append((now_s, float(right.mean()), float(right[slow].mean()), updates))


def pretrained(
    task: TextTask, layers: int, width: int, heads: int, rank: int, steps: int, seed: int
) -> SmallOpt:
    """A base that has read the texts without their labels."""
    shape = SmallShape(layers, width, heads, task.vocabulary, task.train.shape[1], rank)
    model = SmallOpt(shape, seed)
    model.pretrain(task.train, steps, rows=64, rate=3e-3)
    return model


def summary(curves: Sequence[Curve], horizon_s: float) -> dict[str, dict[str, float]]:
    """Per strategy, means over seeds at the horizon; the spread is the standard deviation."""
    figures = {}
    for strategy in STRATEGIES:
        mine = [c for c in curves if c.strategy == strategy]
        final = np.array([c.at(horizon_s) for c in mine])
        figures[strategy] = {
            "accuracy": float(final[:, 0].mean()),
            "accuracy_sd": float(final[:, 0].std()),
            "slow_class_accuracy": float(final[:, 1].mean()),
            "slow_class_accuracy_sd": float(final[:, 1].std()),
            "round_s": float(np.mean([c.round_s for c in mine])),
            "updates_per_round": float(np.mean([np.mean(c.updates[1:]) for c in mine])),
        }
    return figures
