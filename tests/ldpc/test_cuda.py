"""The CUDA decoders on numba's simulator, bit by bit against the CPU's; and compiled for sm_90."""

import importlib.util
import os
import subprocess
import sys

import pytest

# numba decides when it is first imported whether it simulates, hence the process of its own
COMPARE = """
import itertools
import numpy as np
from ranloom.ldpc.base_graph import base_graph
from ranloom.ldpc.cuda import decode_cuda
from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.ldpc.encoder import encode

rng = np.random.default_rng(1)
variants = itertools.product(("layered", "flooding"), ("offset", "normalised"), (False, True))
codes = itertools.cycle([(1, 2, None, 8), (2, 3, 9, 16), (2, 2, None, 8), (1, 3, 9, 16)])
for (schedule, rule, stop), (index, z, n_rows, bits) in zip(variants, codes):
    graph = base_graph(index)
    settings = DecoderSettings(schedule, rule, bits, iterations=2, early_stop=stop)
    information = rng.integers(0, 2, (2, graph.information_columns * z), dtype=np.uint8)
    llr = 2.5 * (1 - 2.0 * encode(information, graph, z))
    llr += rng.normal(0, [[2.4], [1.0]], llr.shape)  # one block beyond repair, one easy
    llr[:, : 2 * z] = 0
    quantised = settings.quantise(llr)
    ours = decode(quantised, graph, z, settings, n_rows)
    cuda = decode_cuda(quantised, graph, z, settings, n_rows)
    np.testing.assert_array_equal(cuda.words, ours.words)
    np.testing.assert_array_equal(cuda.parity_ok, ours.parity_ok)
    np.testing.assert_array_equal(cuda.iterations, ours.iterations)
    wrong = (ours.words[:, : information.shape[1]] != information).sum()
    print("equal", schedule, rule, stop, wrong, *ours.iterations)
"""

COMPILE = """
import types as python_types
import numba.cuda.dispatcher
from numba import cuda, types
from cuda.core import Program, ProgramOptions
from ranloom.ldpc import cuda as decoder

# device functions ask for the device at hand
hopper = python_types.SimpleNamespace(compute_capability=(9, 0))
numba.cuda.dispatcher.get_current_device = lambda: hopper
word, flag, i64, on = types.int16[:, ::1], types.uint8[:, ::1], types.int64, types.boolean
line = types.int32[::1]
for message in (types.int8, types.int16):
    edges = message[:, :, ::1]
    code, rule = (line, line, line, i64), (i64, i64, i64)
    signatures = {
        "_layered_kernel": (word, edges, *code, *rule, i64, on, flag),
        "_parity_kernel": (word, *code, i64, flag),
        "_check_kernel": (word, edges, *code, *rule, i64, on, flag),
        "_variable_kernel": (word, edges, word, line, line, line, i64, i64, on, flag),
    }
    for name, signature in signatures.items():
        ptx, _ = cuda.compile_ptx(getattr(decoder, name).py_func, signature, cc=(9, 0))
        cubin = Program(ptx, "ptx", ProgramOptions(arch="sm_90")).compile("cubin")
        print("cubin", name, message, len(cubin.code))
"""


def python(root, script, **environment):
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_bit_exact_with_the_cpu(root):
    done = python(root, COMPARE, NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("equal")]
    assert len(lines) == 8
    # the comparison means something: decisions are still wrong, and blocks stop at different times
    assert any(int(line[4]) > 0 for line in lines)
    assert any(line[3] == "True" and line[5] != line[6] for line in lines)
    assert all(line[5] == line[6] == "2" for line in lines if line[3] == "False")


@pytest.mark.skipif(
    not importlib.util.find_spec("numba_cuda"), reason="numba-cuda[cu13] is not installed"
)
def test_compiles_for_a_gpu_without_one(root):
    done = python(root, COMPILE)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("cubin") for line in done.stdout.splitlines()) == 8
