# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Counter-based random numbers: a draw is a function of its coordinates, not of a history.

Two runs of one seed meet the same block errors and decode tails in the same slot, whatever
their controllers did before: the common random numbers that make a difference between two
controllers small against its noise. The mixer is SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

import math

import numpy as np

from ranloom.mac.kernel import kernel

STREAM_BLOCK_ERROR = 0
STREAM_DECODE_TAIL = 1
STREAM_DECODE_TAIL_PAIR = 2
STREAM_STALL = 3
STREAM_STALL_LENGTH = 4

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD1B54A32D192ED03)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ONE = np.uint64(1)


@kernel
def uniform(seed, stream, lane, counter):
    """Uniform number in (0, 1).

    Args:
        seed: root of all draws of a run.
        stream: what is drawn, one of ``STREAM_*`` (below 8).
        lane: UE, or 0 for the cell.
        counter: UL slot index.
    """
    key = (np.uint64(lane) * np.uint64(8) + np.uint64(stream)) * _ODD
    x = (np.uint64(seed) ^ key) + (np.uint64(counter) + _ONE) * _GOLDEN
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    x = x ^ (x >> _S31)
    return (np.float64(x >> _S11) + 0.5) * (1.0 / 9007199254740992.0)


@kernel
def normal(seed, counter):
    """Standard normal number of the cell in one slot (Box-Muller)."""
    radius = math.sqrt(-2.0 * math.log(uniform(seed, STREAM_DECODE_TAIL, 0, counter)))
    return radius * math.cos(2.0 * math.pi * uniform(seed, STREAM_DECODE_TAIL_PAIR, 0, counter))
