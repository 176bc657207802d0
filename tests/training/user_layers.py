"""A user's own model: an embedding, recurrent and dense blocks with dropout, a head."""

from __future__ import annotations

from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent block with a residual connection."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)
        self.drop = nn.Dropout(dropout)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.drop(self.cell(value)[0])


def recurrent(width: int, blocks: int, dropout: float = 0.2) -> list[nn.Module]:
    narrow = nn.Sequential(nn.Linear(width, width // 2), nn.Tanh())
    return [
        nn.Embedding(256, width),
        *(Recurrent(width, dropout) for _ in range(blocks)),
        narrow,
        nn.Linear(width // 2, 256),
    ]


def sharing(width: int) -> list[nn.Module]:
    head = nn.Linear(width, width)
    return [nn.Embedding(256, width), head, head]


def unfitting(width: int) -> list[nn.Module]:
    return [nn.Embedding(256, width), nn.Linear(width + 1, 256)]


def without_logits(width: int) -> list[nn.Module]:
    return [nn.Embedding(256, width), nn.Flatten()]
