"""The spare-compute path: channel latency, replay speed, and what a result check costs.

``python bench/spare.py`` prints all of it and writes it into ``bench/results.json`` under
``spare``. The channel is timed between two processes over loopback, beside plain ZeroMQ
publish/subscribe of as many bytes; the replay beside the executor's loop on modelled time, which
decides the same slot by slot in Python; the check beside the product that it checks. CPU times are
process time, the best of several.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import zmq

from ranloom.gpu.card import load_card
from ranloom.spare.budget import from_changes
from ranloom.spare.channel import BudgetPublisher, BudgetView
from ranloom.spare.channel_zmq import ZmqPublisher, ZmqSubscriber
from ranloom.spare.checks import check_product
from ranloom.spare.coexistence import ChainBuffers, run_beside
from ranloom.spare.executor import SlotExecutor
from ranloom.spare.gemm import Gemm, TileModel, Tiling
from ranloom.spare.mechanism import Mechanism
from ranloom.spare.replay import replay
from ranloom.spare.tile_profile import modelled_profile
from ranloom.spare.virtual_device import VirtualDevice
from ranloom.spare.workload import gemm_chain, transformer_step

ROOT = Path(__file__).resolve().parent.parent
SLOT_US = 500.0
GREEN = Mechanism("green_context", 10.0, True, 0.0)
PAUSE_S = 0.0005  # one message a slot, so that none waits for the one before
CARDS = ROOT / "data/cards"


def best(work: Callable[[], object], repeats: int) -> float:
    """Least CPU time of a call, s; the first one compiles and does not count."""
    times = []
    for _ in range(repeats + 1):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times[1:])


def subscriber(kind: str, address: str, count: int) -> None:
    """Receive, and print median and P99 of how long messages were on their way, us."""
    taken = []
    if kind == "budget":
        view = BudgetView(60.0, 48)
        channel = ZmqSubscriber(view, address)
        while len(taken) < count:
            if channel.poll(10.0):
                now = time.monotonic()
                held = view._held
                assert held is not None
                taken.append(now - held.sent_s)
        channel.close()
    else:
        with zmq.Context() as context, context.socket(zmq.SUB) as plain:
            plain.connect(address)
            plain.subscribe(b"")
            while len(taken) < count:
                sent = plain.recv()
                taken.append(time.monotonic() - float(sent.split()[0]))
    print(json.dumps([1e6 * float(np.quantile(taken[count // 10 :], q)) for q in (0.5, 0.99)]))


def latencies(kind: str, count: int) -> list[float]:
    """Median and P99 of publish to receive in another process, us."""
    card = load_card(CARDS / "dgx_spark.yaml")
    if kind == "budget":
        publisher = ZmqPublisher(BudgetPublisher("cell-0", 1, card), "tcp://127.0.0.1:*", 60.0)
        address = publisher.address

        def send(slot: int) -> None:
            publisher.reserve(slot, 8 + 16 * (slot % 2), slot)

    else:
        context = zmq.Context()
        plain = context.socket(zmq.PUB)
        plain.linger = 0
        address = f"tcp://127.0.0.1:{plain.bind_to_random_port('tcp://127.0.0.1')}"

        def send(_slot: int) -> None:
            plain.send(f"{time.monotonic()!r} ".encode().ljust(130))

    command = [sys.executable, __file__, "--subscribe", kind, address, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        slot = 0
        while process.poll() is None:
            send(slot)
            slot += 1
            time.sleep(PAUSE_S)
        assert process.stdout is not None
        return list(json.loads(process.stdout.read()))


def channel(count: int) -> dict[str, float]:
    """Median and tail of both channels."""
    found = {}
    for kind in ("budget", "plain_zeromq"):
        found[f"{kind}_median_us"], found[f"{kind}_p99_us"] = latencies(kind, count)
    found["median_over_plain"] = found["budget_median_us"] / found["plain_zeromq_median_us"]
    return found


def replays(repeats: int) -> dict[str, float]:
    """CPU time of 600 s of slots, and the same decisions by the executor's loop."""
    spark, l40s = load_card(CARDS / "dgx_spark.yaml"), load_card(CARDS / "l40s.yaml")
    rng = np.random.default_rng(1)
    n_slots = 1_200_000
    slot = np.unique(np.concatenate([[0], rng.choice(n_slots, 744)]))

    def trace(card, length: int):
        levels = card.levels[: card.levels.size // 2]
        kept = slot[slot < length]
        return from_changes(
            kept, rng.choice(levels, kept.size), length, SLOT_US, sm_max=card.sm_count
        )

    chain = gemm_chain(
        "chain", length=64, m=20480, n=1024, k=1024, restart="unit", relaunch_us=900_000
    )
    step = transformer_step(
        "step", layers=12, hidden=5120, heads=40, ffn=20480, vocabulary=50272,
        batch=4, sequence=512, restart="tile",
    )  # fmt: skip
    slow = TileModel(spark, 0.0205, 0.5, 2, 1.0)
    fast = TileModel(l40s, 0.6, 0.5, 2, 1.0)
    small, large = Tiling(64, 64, 256), Tiling(128, 128, 1024)
    beside_chain, beside_step = trace(spark, n_slots), trace(l40s, n_slots)
    options = {"jitter_sigma": 0.1, "seed": 1}
    found = {
        "chain_600_s": best(
            lambda: replay(beside_chain, chain, GREEN, slow, small, **options), repeats
        ),
        "training_step_600_s": best(
            lambda: replay(beside_step, step, GREEN, fast, large, **options), repeats
        ),
    }
    short = trace(l40s, 4000)
    gemm = Gemm(20480, 1024, 1024)
    single = gemm_chain("single", length=1, m=gemm.m, n=gemm.n, k=gemm.k, restart="tile")
    buffers = ChainBuffers(
        torch.empty(2, gemm.m, gemm.k, device="meta"), torch.empty(1, gemm.k, gemm.n, device="meta")
    )
    profile = modelled_profile([gemm], l40s.levels, fast, large)

    def loop() -> None:
        device = VirtualDevice(
            rebind_us=10.0, factor=lambda: 1.0, copy_us=0.0, slot_us=SLOT_US, compute=False
        )
        executor = SlotExecutor(
            device, profile, fast.bytes_per_us, SLOT_US, buffers.source(large), 1.0
        )
        run_beside(
            short, executor, device, l40s.levels, l40s.sm_count,
            decodes=lambda _slot: False, decode=lambda _slot, _sm: None,
        )  # fmt: skip

    python_s = best(loop, repeats)
    kernel_s = best(lambda: replay(short, single, GREEN, fast, large, **options), repeats)
    return found | {"executor_loop_over_replay": python_s / kernel_s}


def checks(repeats: int) -> dict[str, float]:
    """CPU time of a check over that of the product, one thread, float32."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    found = {}
    for size in (512, 2048):
        a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
        c = a @ b
        product_s = best(lambda a=a, b=b: a @ b, repeats)
        for pairs in (1, 4):
            check_s = best(
                lambda a=a, b=b, c=c, pairs=pairs: check_product(
                    a, b, c, pairs=pairs, sigmas=6.0, generator=generator
                ),
                repeats,
            )
            found[f"check_{pairs}_pairs_over_product_{size}"] = check_s / product_s
    return found


def main() -> None:
    """Run, print, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=4000, help="timed on each channel")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs")
    parser.add_argument("--subscribe", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subscribe:
        kind, address, count = options.subscribe
        subscriber(kind, address, int(count))
        return
    results = {
        "channel": channel(options.messages),
        "replay_cpu_s": replays(options.repeats),
        "checks": checks(options.repeats),
    }
    print(json.dumps(results, indent=2))
    path = ROOT / "bench/results.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | {"spare": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
