"""The CUDA decoder on numba's simulator, bit by bit against the CPU's flooding decoder."""

import os
import subprocess
import sys

import pytest

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import base_graph
from ranloom.ldpc.cuda import CudaDecoder
from ranloom.ldpc.decoder import DecoderSettings

# numba decides when it is first imported whether it simulates, hence the process of its own
COMPARE = """
import itertools
import numpy as np
from ranloom.ldpc.base_graph import base_graph
from ranloom.ldpc.cuda import decode_cuda
from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.ldpc.encoder import encode

rng = np.random.default_rng(1)
cases = itertools.product((1, 2), ("offset", "normalised"), (8, 16), ((2, None), (3, 9)))
for index, rule, bits, (z, n_rows) in cases:
    graph = base_graph(index)
    settings = DecoderSettings("flooding", rule, bits, iterations=3, early_stop=False)
    information = rng.integers(0, 2, (1, graph.information_columns * z), dtype=np.uint8)
    llr = 2.5 * (1 - 2.0 * encode(information, graph, z))
    llr += rng.normal(0, 2.2, llr.shape)
    llr[:, : 2 * z] = 0
    quantised = settings.quantise(llr)
    ours = decode(quantised, graph, z, settings, n_rows)
    cuda = decode_cuda(quantised, graph, z, settings, n_rows)
    np.testing.assert_array_equal(cuda.words, ours.words)
    np.testing.assert_array_equal(cuda.parity_ok, ours.parity_ok)
    np.testing.assert_array_equal(cuda.iterations, ours.iterations)
    wrong = (ours.words[:, : information.shape[1]] != information).sum()
    print("equal", index, rule, bits, z, wrong)
"""


def simulate(root, script):
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_bit_exact_with_the_cpu(root):
    done = simulate(root, COMPARE)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("equal")]
    assert len(lines) == 16
    # the comparison means something: some words are still wrong after three iterations
    assert any(int(line.split()[-1]) > 0 for line in lines)


def test_settings_that_it_does_not_have_are_refused():
    for settings in (DecoderSettings("layered"), DecoderSettings("flooding", early_stop=True)):
        with pytest.raises(InputError, match="needed on CUDA"):
            CudaDecoder(base_graph(1), 2, 1, settings, 46)
