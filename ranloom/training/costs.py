"""What the layers of a model cost: the plain numbers that placement and prediction need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranloom.training.layout import Layout


@dataclass(frozen=True)
class LayerCosts:
    """Costs of one micro-batch, by decoder layer. Embedding and head count to the first and last.

    Args:
        forward_flop: floating-point operations of a forward pass [L].
        backward_flop: of a backward pass with kept activations [L].
        weight_bytes: parameters and optimizer state; what moves with a layer [L].
        gradient_bytes: one gradient as it is held, summed and reduced [L].
        activation_bytes: activations kept for the backward pass of one micro-batch [L].
        boundary_bytes: output of one layer, sent to the next stage.
        tied_bytes: gradient of the weight that the first and the last stage share.
        unmerged_limit: gradients of single micro-batches that a site holds at most until these are
            complete (the commit ledger needs it); 0 where gradients are summed at once.
    """

    forward_flop: np.ndarray
    backward_flop: np.ndarray
    weight_bytes: np.ndarray
    gradient_bytes: np.ndarray
    activation_bytes: np.ndarray
    boundary_bytes: float
    tied_bytes: float = 0.0
    unmerged_limit: int = 1 << 30

    @property
    def layers(self) -> int:
        """Decoder layers L."""
        return len(self.forward_flop)

    def stage_flop(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """Forward and backward work of each stage [P], [P].

        The last stage has no forward task of its own: its backward work includes it.
        """
        forward = _stage_sums(self.forward_flop, layout)
        backward = _stage_sums(self.backward_flop, layout)
        backward[-1] += forward[-1]
        forward[-1] = 0.0
        return forward, backward

    def layer_bytes(self, window: int) -> np.ndarray:
        """Memory of a holder for each of its layers [L].

        Weights, the partial sum, the unmerged gradients, and for each micro-batch of the window its
        activations.
        """
        gradients = 1 + min(window, self.unmerged_limit)
        return np.asarray(
            self.weight_bytes + gradients * self.gradient_bytes + window * self.activation_bytes
        )

    def transit_bytes(self, window: int) -> float:
        """Memory of a holder for retained inputs and outputs."""
        return 2.0 * window * self.boundary_bytes

    def stage_bytes(self, layout: Layout, window: int) -> np.ndarray:
        """Memory that a holder of each stage needs [P]."""
        return _stage_sums(self.layer_bytes(window), layout) + self.transit_bytes(window)

    def widest_window(self, layout: Layout, most: int, room_bytes: np.ndarray | float) -> int:
        """Largest window up to ``most`` that fits the memory of every stage's holders; 0 if none.

        Args:
            layout: boundaries and holders.
            most: largest window wanted.
            room_bytes: memory, one for all or by stage [P].
        """
        fits, too_wide = 0, most + 1
        while too_wide - fits > 1:
            window = (fits + too_wide) // 2
            if np.any(self.stage_bytes(layout, window) > room_bytes):
                too_wide = window
            else:
                fits = window
        return fits


def layer_sum(values: np.ndarray, layers: range) -> float:
    """Sum over a stage's layers; to the last digit that of all stages at once."""
    return float(np.add.reduceat(values[layers.start : layers.stop].astype(np.float64), [0])[0])


def _stage_sums(values: np.ndarray, layout: Layout) -> np.ndarray:
    return np.add.reduceat(values.astype(np.float64), np.asarray(layout.boundaries[:-1]))
