"""The persistent kernel on numba's simulator: the queue, and what comes out of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import numpy as np, pytest, torch
from numba import cuda
from ranloom.errors import InputError
from ranloom.spare import persistent_kernel
from ranloom.spare.coexistence import chain_buffers
from ranloom.spare.gemm import Gemm, Tiling
from ranloom.spare.persistent_kernel import PersistentLane
from ranloom.spare.ran_load import hold

persistent_kernel.THREADS = 2  # threads are expensive in the simulator
gemm, tiling = Gemm(5, 4, 4), Tiling(3, 2, 3)
buffers = chain_buffers(gemm, torch.float32, torch.device("cpu"), 2)
start = buffers.entries[0].clone()
entries, weight = (cuda.to_device(t.numpy()) for t in (buffers.entries, buffers.weight))
lane = PersistentLane(2, entries, weight, entries, capacity=5)
assert not lane.in_order
source = buffers.source(tiling)
for _ in range(2):  # two dependent products
    product = source()
    while not product.finished:  # each pass over the outputs waits for the one before
        tiles = product.concurrent
        lane.start([])
        first = lane.launch(product, tiles - 2)
        second = lane.launch(product, 2)
        assert not first.query()  # the simulator runs the kernel when it is told to leave
        lane.stop()
        assert first.query() and second.query() and lane.finished == tiles
expected = start
for _ in range(2):
    expected = expected @ buffers.weight[0]
np.testing.assert_allclose(entries.copy_to_host()[0], expected.numpy(), rtol=1e-5, atol=1e-5)

product = source()
lane.start([])
with pytest.raises(InputError, match="room: 5"):
    lane.launch(product, 6)
product.operands = (0, 0, 2)
with pytest.raises(InputError, match="matrices"):
    lane.launch(product, 1)
other = chain_buffers(Gemm(6, 4, 4), torch.float32, torch.device("cpu"), 2).source(tiling)()
with pytest.raises(InputError, match="persistent kernel: product"):
    lane.launch(other, 1)
with pytest.raises(InputError, match="persistent kernel: shapes"):
    PersistentLane(2, entries, entries, entries, 9)
with pytest.raises(InputError, match="persistent kernel: room"):
    PersistentLane(0, entries, weight, entries, 9)

out = cuda.to_device(np.zeros((2, 4), dtype=np.float32))
hold[2, 4](out, 3)
value = 0.0
for _ in range(3):
    value = value * 0.999 + 1.0
np.testing.assert_allclose(out.copy_to_host(), value, rtol=1e-6)
print("equal")
"""


def test_queue_is_served_exactly_once(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"
