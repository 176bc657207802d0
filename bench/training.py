"""Elastic training: cost of the coordinator, and throughput against torch.distributed.pipelining.

``python bench/training.py`` prints everything and writes it into ``bench/results.json`` under
``training``. Costs of the coordinator are process time. The two systems run one after the other,
with the same model, cut, micro-batches and pacing (work / budget); the peer is a static 1F1B
pipeline with gloo, an all-reduce over its replicas, and the best micro-batch count of those tried.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.nn import functional
from training_sim import control_interval_us

from ranloom.training.messages import NoteKind
from ranloom.training.opt_model import (
    MicroBatch,
    ModelConfig,
    OptStage,
    even_boundaries,
    per_sample_loss,
)
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.chaos import SETTINGS
from ranloom.training.runtime.live import Fault, LiveConfig, LiveResult, run_live
from ranloom.training.runtime.pacing import Budget, BudgetCut
from ranloom.training.runtime.setup import TrainingSetup, layer_costs
from ranloom.training.runtime.supervise import Children
from ranloom.training.settings import CoordinatorSettings

ROOT = Path(__file__).resolve().parent.parent
REPLICAS, STAGES = 2, 2
CUT_SITE, CUT_LEFT = 1, 0.25
STEP_SAMPLES = 32


# --- one run of ours ------------------------------------------------------------------------------


def setup() -> TrainingSetup:
    """A decoder of four layers; every sample has all its tokens."""
    return TrainingSetup(
        model=ModelConfig(
            layers=4,
            width=64,
            heads=4,
            ffn_width=256,
            vocabulary=256,
            positions=32,
            dtype="float32",
        ),
        optimizer=OptimizerConfig("sgd", 0.1),
        source="generated",
        generated_samples=512,
        sequence_length=32,
        micro_batch_samples=2,
        seed=3,
    )


def settings(micro_batches: int, steps: int) -> CoordinatorSettings:
    """Default control of the chain, for steps of that many micro-batches."""
    return replace(
        SETTINGS,
        micro_batch_samples=2,
        step_micro_batches=micro_batches,
        micro_batch_limit=steps * micro_batches,
        window=micro_batches,
        control_interval_s=0.2,
        slack_fraction=0.1,
        steal_gain=0.1,
        margin_errors=0.5,
        lease_s=30.0,
        checkpoint_steps=0,
        rebalancing=False,
    )


def tflops(task_s: float) -> float:
    """Budget under which a forward task of a stage of even work takes that long."""
    return float(layer_costs(setup()).forward_flop.sum()) / STAGES / task_s / 1e12


def live(
    folder: Path,
    steps: int,
    task_s: float,
    cut: BudgetCut | None = None,
    replicas: int = REPLICAS,
    stages: int = STAGES,
    micro_batches: int = STEP_SAMPLES // 2,
    faults: Sequence[Fault] = (),
    watch: Any = None,
) -> LiveResult:
    """Train for some steps, sites paced to their budget."""
    full = tflops(task_s)
    config = LiveConfig(
        setup=setup(),
        settings=settings(micro_batches, steps),
        boundaries=even_boundaries(4, stages),
        replicas=replicas,
        budgets=tuple(
            Budget((full,), cuts=(cut,) if cut and site == CUT_SITE else ())
            for site in range(replicas * stages)
        ),
        folder=folder,
        deadline_s=300.0,
        faults=tuple(faults),
    )
    return run_live(config, watch)


def samples_per_s(result: LiveResult, first_step: int) -> float:
    """Throughput from the opening of a step to the end."""
    opened_s = next(
        at for at, n in result.notes if n.kind is NoteKind.STEP_OPENED and n.step == first_step
    )
    reduced = [
        (at, n.value)
        for at, n in result.notes
        if n.kind is NoteKind.STEP_REDUCED and n.step >= first_step
    ]
    return sum(value for _, value in reduced) / (reduced[-1][0] - opened_s)


# --- the peer -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerConfig:
    """One process of the static pipeline."""

    rank: int
    store: Path
    micro_batches: int
    steps: int
    task_s: float
    cut: BudgetCut | None


class _Paced(nn.Module):
    """A stage whose passes take work / budget, or their own time where that is longer."""

    def __init__(self, stage: OptStage, seconds: tuple[float, float]) -> None:
        super().__init__()
        self.stage = stage
        self.seconds = seconds
        self.slowdown = 1.0
        self.began_s = 0.0

    def forward(self, value: Tensor) -> Tensor:
        """Activations, or logits of the last stage."""
        began_s = time.monotonic()
        stage = self.stage
        hidden = stage._embed(value) if stage.is_first else value
        hidden = _BackwardEnds.apply(hidden, self)
        batch = MicroBatch(0, tuple(range(len(value))), torch.empty(0), torch.empty(0))
        for layer in stage.layers.values():
            hidden = layer(hidden, batch)
        if stage.is_last:
            hidden = functional.linear(stage.final_layer_norm(hidden), stage.embed_tokens.weight)
        hidden = _BackwardBegins.apply(hidden, self)
        self.pace(began_s, self.seconds[0])
        return hidden

    def pace(self, began_s: float, seconds: float) -> None:
        """Sleep for what is left of a task's time."""
        time.sleep(max(0.0, began_s + seconds * self.slowdown - time.monotonic()))


class _BackwardBegins(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, paced: _Paced) -> Tensor:
        context.paced = paced
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        context.paced.began_s = time.monotonic()
        return gradient, None


class _BackwardEnds(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor, paced: _Paced) -> Tensor:
        context.paced = paced
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        context.paced.pace(context.paced.began_s, context.paced.seconds[1])
        return gradient, None


def run_peer(config: PeerConfig) -> None:
    """One rank of D x P processes: 1F1B in its replica, all-reduce with its stage's other ranks."""
    what = setup()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{config.store}",
        rank=config.rank,
        world_size=REPLICAS * STAGES,
    )
    replica, number = divmod(config.rank, STAGES)
    pipes = [dist.new_group([r * STAGES + s for s in range(STAGES)]) for r in range(REPLICAS)]
    peers = [dist.new_group([r * STAGES + s for r in range(REPLICAS)]) for s in range(STAGES)]
    cut_at = even_boundaries(what.model.layers, STAGES)
    held = slice(cut_at[number], cut_at[number + 1])
    samples = STEP_SAMPLES // REPLICAS
    costs = layer_costs(what)
    share = samples / config.micro_batches / what.micro_batch_samples
    budget = tflops(config.task_s) * 1e12
    seconds = (
        share * float(costs.forward_flop[held].sum()) / budget,
        share * float(costs.backward_flop[held].sum()) / budget,
    )
    module = _Paced(OptStage(what.model, held.start, held.stop, what.seed), seconds)
    stage = pipelining.PipelineStage(
        module, number, STAGES, torch.device("cpu"), group=pipes[replica]
    )
    length = what.sequence_length

    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        whole = torch.full((len(tokens),), length)
        return per_sample_loss(logits, MicroBatch(0, (), tokens, whole)).sum()

    schedule = pipelining.Schedule1F1B(stage, config.micro_batches, loss, scale_grads=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=what.optimizer.learning_rate)
    random = torch.Generator().manual_seed(replica)
    ends_s = []
    for step in range(config.steps):
        cut = config.cut
        slow = cut and config.rank == CUT_SITE and cut.first_step <= step < cut.end_step
        module.slowdown = 1.0 / cut.factor if cut and slow else 1.0
        tokens = torch.randint(0, 256, (samples, length), generator=random)
        if number == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens)
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=peers[number])
                parameter.grad /= STEP_SAMPLES
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        ends_s.append(time.monotonic())
    if config.rank == 0:
        config.store.with_suffix(".json").write_text(json.dumps(ends_s))
    dist.destroy_process_group()


def peer_samples_per_s(
    folder: Path, micro_batches: int, steps: int, task_s: float, cut: BudgetCut | None
) -> float:
    """Throughput of the static pipeline after its first step."""
    folder.mkdir(parents=True)
    store = folder / "store"
    with Children(folder) as children:
        for rank in range(REPLICAS * STAGES):
            config = PeerConfig(rank, store, micro_batches, steps, task_s, cut)
            children.start(f"peer-{rank}", run_peer, config)
        for rank in range(REPLICAS * STAGES):
            children.wait(f"peer-{rank}", 300.0)
            if children.exit_code(f"peer-{rank}") != 0:
                raise RuntimeError(children.last_words(f"peer-{rank}"))
    ends_s = json.loads(store.with_suffix(".json").read_text())
    return float(STEP_SAMPLES * (steps - 1) / (ends_s[-1] - ends_s[0]))


# --- the bars -------------------------------------------------------------------------------------


def throughput(scratch: Path, steps: int, task_s: float, counts: Sequence[int]) -> dict[str, Any]:
    """Ours against the peer, without faults and with one site cut for half the steps."""
    found: dict[str, Any] = {"steps": steps, "task_s": task_s}
    half = BudgetCut(1 + (steps - 1) // 4, 1 + (steps - 1) // 4 + (steps - 1) // 2, CUT_LEFT)
    for name, cut in (("quiet", None), ("cut", half)):
        peers = {
            count: peer_samples_per_s(scratch / f"{name}-{count}", count, steps, task_s, cut)
            for count in counts
        }
        ours = live(scratch / f"{name}-ours", steps, task_s, cut)
        rate = samples_per_s(ours, 1)
        found[name] = {
            "ours_samples_per_s": rate,
            "peer_samples_per_s": {str(count): value for count, value in peers.items()},
            "ratio": rate / max(peers.values()),
            "reroutes": ours.count(NoteKind.REROUTED),
            "weights_rel_error": ours.proof.weights_rel_error,
            "lost_or_doubled": ours.proof.samples_lost + ours.proof.samples_doubled,
        }
        print(name, json.dumps(found[name]), flush=True)
    return found


def coordinator_share(scratch: Path, steps: int) -> dict[str, float]:
    """Processor time of the coordinator in steps of 2 s with 64 tasks (16 micro-batches, P=2)."""
    # A step lasts about (micro-batches / D + P - 1) tasks of forward and backward.
    result = live(scratch / "share", steps, task_s=2.0 / (8 + 1) / 3.0)
    (first_s, first_cpu_s), (last_s, last_cpu_s) = (
        result.coordinator_cpu_s[0],
        result.coordinator_cpu_s[-1],
    )
    found = {
        "step_s": (last_s - first_s) / (len(result.coordinator_cpu_s) - 1),
        "cpu_pct": 100.0 * (last_cpu_s - first_cpu_s) / (last_s - first_s),
    }
    print("coordinator", json.dumps(found), flush=True)
    return found


def recovery(scratch: Path) -> dict[str, float]:
    """Time from the death of the coordinator until it goes on, beside that of its start-up."""
    committed_s: list[float] = []
    recovered_s: list[float] = []

    def watch(note: dict[str, object]) -> None:
        wall_s, step = float(str(note["wall_s"])), int(str(note["step"]))
        if note["kind"] == NoteKind.RECOVERED:
            recovered_s.append(wall_s)
        elif note["kind"] == NoteKind.COMMITTED and step >= 2:
            committed_s.append(wall_s)

    crash = Fault("coordinator", signal.SIGKILL, NoteKind.COMMITTED, 2, count=5, back_after_s=0.0)
    result = live(scratch / "recovery", 5, 0.02, faults=(crash,), watch=watch)
    found = {
        "kill_to_recovered_s": recovered_s[0] - committed_s[4],
        "first_start_up_s": result.coordinator_start_s,
    }
    print("recovery", json.dumps(found), flush=True)
    return found


def eight_sites(scratch: Path) -> dict[str, float]:
    """Start and memory of eight site processes."""
    result = live(scratch / "eight", 2, 0.02, replicas=4)
    sites = [size for name, size in result.resident_bytes.items() if name.startswith("site-")]
    found = {
        "sites": len(sites),
        "start_s": result.start_s,
        "pss_gb": sum(sites) / 1e9,
        "pss_with_coordinator_gb": sum(result.resident_bytes.values()) / 1e9,
    }
    print("eight sites", json.dumps(found), flush=True)
    return found


def main() -> None:
    """Run, print, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=13, help="steps of a throughput run")
    parser.add_argument("--task-s", type=float, default=0.03, help="a forward task, paced")
    parser.add_argument("--counts", type=int, nargs="+", default=[4, 8, 16], help="of the peer")
    parser.add_argument("--only", default="", help="one of the parts")
    options = parser.parse_args()
    small, _ = control_interval_us(4, 2, 16)
    large, _ = control_interval_us(32, 16, 128)
    interval = {"8_sites_us": small, "512_sites_us": large}
    print("control interval", json.dumps(interval), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        parts = {
            "eight_sites": lambda: eight_sites(scratch),
            "recovery": lambda: recovery(scratch),
            "coordinator_2s_step": lambda: coordinator_share(scratch, 6),
            "against_1f1b": lambda: throughput(
                scratch, options.steps, options.task_s, options.counts
            ),
        }
        found = {n: part() for n, part in parts.items() if options.only in ("", n)}
    results = {"control_interval": interval, **found}
    path = ROOT / "bench/results.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    before = kept.get("training", {})
    path.write_text(json.dumps(kept | {"training": before | results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
