"""A model of your own for the live run: a list of layers, cut into pipeline stages between them.

The first layer takes token ids [B, T], each further one what the layer before gives, the last one
gives logits [B, T, V]. Layers share no parameters and have no buffers.
"""

from __future__ import annotations

from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent block with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)

    def forward(self, value: Tensor) -> Tensor:
        """Activations [B, T, width] of activations [B, T, width]."""
        return value + self.cell(value)[0]


def recurrent(width: int, blocks: int) -> list[nn.Module]:
    """Embedding, blocks and head over the 256 bytes of the text."""
    return [
        nn.Embedding(256, width),
        *(Recurrent(width) for _ in range(blocks)),
        nn.Linear(width, 256),
    ]
