"""What runs beside the RAN: units of dependent matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ranloom.spare.gemm import Gemm

Restart = Literal["unit", "gemm", "tile"]
RESTARTS: tuple[Restart, ...] = ("tile", "gemm", "unit")


@dataclass(frozen=True)
class Workload:
    """A unit of work that repeats for as long as there is time.

    Args:
        name: name in tables.
        gemms: products of one unit; each needs the one before it.
        restart: what starts over when the partition changes under it: nothing but the tiles in
            flight (``tile``), the current product (``gemm``), or the whole unit (``unit``).
        tokens: training tokens of one unit, 0 where that has no meaning.
        relaunch_us: time after a change of the partition before the workload runs again,
            beyond what the sharing mechanism takes.
    """

    name: str
    gemms: tuple[Gemm, ...]
    restart: Restart
    tokens: int
    relaunch_us: float = 0.0

    @property
    def flops(self) -> float:
        """Operations of one unit."""
        return sum(gemm.flops for gemm in self.gemms)


def gemm_chain(
    name: str,
    *,
    length: int,
    m: int,
    n: int,
    k: int,
    restart: Restart,
    relaunch_us: float = 0.0,
) -> Workload:
    """Chain of equal dependent products (WEAVER Table 5: 64 of 20480 x 1024 x 1024)."""
    return Workload(name, (Gemm(m, n, k),) * length, restart, 0, relaunch_us)


def transformer_step(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocabulary: int,
    batch: int,
    sequence: int,
    restart: Restart,
) -> Workload:
    """Forward and backward of a decoder-only transformer (WEAVER Table 6: OPT-13B, 12 layers).

    Each product of the forward pass has two in the backward pass, one for the gradient of its
    input and one for that of its weight (or second operand).
    """
    rows = batch * sequence
    head = hidden // heads
    forward = [
        *(
            (
                Gemm(rows, 3 * hidden, hidden),  # query, key, value
                Gemm(sequence, sequence, head, batch * heads),  # scores
                Gemm(sequence, head, sequence, batch * heads),  # weighted values
                Gemm(rows, hidden, hidden),  # output projection
                Gemm(rows, ffn, hidden),
                Gemm(rows, hidden, ffn),
            )
            * layers
        ),
        Gemm(rows, vocabulary, hidden),
    ]
    backward = [
        grad
        for g in reversed(forward)
        for grad in (Gemm(g.m, g.k, g.n, g.batch), Gemm(g.k, g.n, g.m, g.batch))
    ]
    return Workload(name, (*forward, *backward), restart, rows)
