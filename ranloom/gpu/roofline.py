"""Roofline of LDPC decoding at edge granularity (WEAVER appendix A.1).

Per edge and iteration a check-node update takes 10 operations over 4 bytes and a variable-node
update 2 operations over 10 bytes, with FP16 messages of 2 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECK_OPS_PER_EDGE = 10
CHECK_BYTES_PER_EDGE = 4
VARIABLE_OPS_PER_EDGE = 2
VARIABLE_BYTES_PER_EDGE = 10

OPS_PER_EDGE = CHECK_OPS_PER_EDGE + VARIABLE_OPS_PER_EDGE
BYTES_PER_EDGE = CHECK_BYTES_PER_EDGE + VARIABLE_BYTES_PER_EDGE


@dataclass(frozen=True)
class RooflinePoint:
    """Operations and memory traffic of one decode.

    Args:
        ops: arithmetic operations.
        bytes: memory traffic.
    """

    ops: float
    bytes: float

    @property
    def ops_per_byte(self) -> float:
        """Arithmetic intensity."""
        return self.ops / self.bytes

    def bound(self, ridge_ops_per_byte: float) -> str:
        """``memory`` left of the ridge point of a device, else ``compute``."""
        return "memory" if self.ops_per_byte < ridge_ops_per_byte else "compute"


def decode_point(n_edges: int, lifting_size: int, iterations: int) -> RooflinePoint:
    """One code block.

    Args:
        n_edges: non-zero entries of the base graph (316 of base graph 1, 197 of base graph 2).
        lifting_size: edges per entry.
        iterations: decoder iterations.
    """
    edges = n_edges * lifting_size * iterations
    return RooflinePoint(ops=edges * OPS_PER_EDGE, bytes=edges * BYTES_PER_EDGE)
