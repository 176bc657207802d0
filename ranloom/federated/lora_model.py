"""A small OPT-shaped decoder with LoRA adapters, many UEs trained in one batch.

The frozen base is shared; each UE has LoRA factors of its own on every linear layer
(arXiv 2106.09685: ``y = W x + B A x``). A leading UE axis on tokens and factors lets one forward
pass serve all UEs of a round. Shape letters: U UEs, N rows of a UE, T tokens, D width, H heads,
F feed-forward width, V vocabulary, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ranloom.federated.layout import TensorLayout

_DTYPE = torch.float64
_ADAM = (0.9, 0.999, 1e-8)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums do not depend on the number of cores, and products this small gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class SmallShape:
    """Shape of the model."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    tokens: int
    rank: int

    def linears(self) -> dict[str, tuple[int, int]]:
        """Linear layers of a decoder layer: name to (out, in)."""
        d = self.width
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        return dict.fromkeys(names, (d, d)) | {"fc1": (4 * d, d), "fc2": (d, 4 * d)}

    def layout(self) -> TensorLayout:
        """LoRA factors, layer by layer."""
        tensors = []
        for layer in range(self.layers):
            for name, (out, inner) in self.linears().items():
                tensors.append((f"{layer}.{name}.lora_A", (self.rank, inner)))
                tensors.append((f"{layer}.{name}.lora_B", (out, self.rank)))
        return TensorLayout.of(tensors)


class SmallOpt:
    """The frozen base, pre-trained on unlabelled text.

    Args:
        shape: of the model.
        seed: of the initial weights.
    """

    def __init__(self, shape: SmallShape, seed: int) -> None:
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int, std: float) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=_DTYPE) * std

        self.base: dict[str, Tensor] = {
            "embed": normal(shape.vocabulary, shape.width, std=0.1),
            "position": normal(shape.tokens, shape.width, std=0.02),
        }
        for layer in range(shape.layers):
            for name, (out, inner) in shape.linears().items():
                self.base[f"{layer}.{name}"] = normal(out, inner, std=1.0 / math.sqrt(inner))

    @one_thread()
    def pretrain(self, texts: NDArray[np.int64], steps: int, rows: int, rate: float) -> None:
        """Next-token prediction on unlabelled texts, shape (rows, T), with Adam."""
        for tensor in self.base.values():
            tensor.requires_grad_(True)
        names = list(self.base)
        adam = _Adam([self.base[name] for name in names], rate)
        for step in range(steps):
            picked = np.arange(step * rows, (step + 1) * rows) % len(texts)
            ids = torch.from_numpy(texts[picked])[None]
            logits = self._hidden(ids, None) @ self.base["embed"].T
            loss = functional.cross_entropy(
                logits[:, :, :-1].reshape(-1, self.shape.vocabulary), ids[:, :, 1:].reshape(-1)
            )
            adam.step(torch.autograd.grad(loss, [self.base[name] for name in names]))
        for tensor in self.base.values():
            tensor.requires_grad_(False)

    def initial_factors(self, seed: int) -> NDArray[np.float64]:
        """Global LoRA factors to begin with: A normal, B zero; shape (elements,)."""
        generator = torch.Generator().manual_seed(seed)
        arrays = {
            t.name: torch.randn(t.shape, generator=generator, dtype=_DTYPE).numpy()
            / math.sqrt(self.shape.width)
            if t.name.endswith("lora_A")
            else np.zeros(t.shape)
            for t in self.shape.layout().tensors
        }
        return self.shape.layout().flatten(arrays)

    @one_thread()
    def train(
        self,
        factors: NDArray[np.float64],
        texts: NDArray[np.int64],
        labels: NDArray[np.int64],
        n_labels: int,
        rate: float,
    ) -> NDArray[np.float64]:
        """Local training of many UEs from the same global factors.

        Args:
            factors: global LoRA factors, shape (elements,).
            texts: shape (steps, U, N, T).
            labels: shape (steps, U, N).
            n_labels: answers are read from the first ``n_labels`` logits.
            rate: Adam's.

        Returns:
            What each UE changed, shape (U, elements).
        """
        ues = texts.shape[1]
        layout = self.shape.layout()
        start = layout.unflatten(factors)
        own = {
            name: torch.from_numpy(values).expand(ues, *values.shape).clone().requires_grad_(True)
            for name, values in start.items()
        }
        adam = _Adam(list(own.values()), rate)
        for batch, answers in zip(texts, labels, strict=True):
            logits = self._answers(torch.from_numpy(batch), own, n_labels)
            # a sum over UEs of each one's mean: UEs do not mix
            loss = functional.cross_entropy(
                logits.reshape(-1, n_labels),
                torch.from_numpy(answers).reshape(-1),
                reduction="sum",
            )
            adam.step(torch.autograd.grad(loss / batch.shape[1], list(own.values())))
        changed = [
            (own[t.name].detach() - torch.from_numpy(start[t.name])).reshape(ues, -1).numpy()
            for t in layout.tensors
        ]
        return np.concatenate(changed, axis=1)

    @one_thread()
    def predict(
        self, factors: NDArray[np.float64], texts: NDArray[np.int64], n_labels: int
    ) -> NDArray[np.int64]:
        """Answers to texts of shape (rows, T)."""
        one = {
            name: torch.from_numpy(values)[None]
            for name, values in self.shape.layout().unflatten(factors).items()
        }
        with torch.no_grad():
            logits = self._answers(torch.from_numpy(texts)[None], one, n_labels)
        answers: NDArray[np.int64] = logits[0].argmax(dim=-1).numpy()
        return answers

    def _answers(self, ids: Tensor, factors: dict[str, Tensor], n_labels: int) -> Tensor:
        """Logits of the label tokens after the last token: (U, N, labels)."""
        last = self._hidden(ids, factors)[:, :, -1]
        return last @ self.base["embed"][:n_labels].T

    def _linear(self, x: Tensor, name: str, factors: dict[str, Tensor] | None) -> Tensor:
        """x: (U, N, T, in) -> (U, N, T, out)."""
        y = x @ self.base[name].T
        if factors is not None:
            ues = x.shape[0]
            low = torch.bmm(x.reshape(ues, -1, x.shape[-1]), factors[f"{name}.lora_A"].mT)
            y = y + torch.bmm(low, factors[f"{name}.lora_B"].mT).reshape(y.shape)
        return y

    def _hidden(self, ids: Tensor, factors: dict[str, Tensor] | None) -> Tensor:
        """Final states: (U, N, T, D)."""
        shape = self.shape
        x = self.base["embed"][ids] + self.base["position"]
        mask = torch.full((shape.tokens, shape.tokens), -torch.inf, dtype=_DTYPE).triu(1)
        for layer in range(shape.layers):
            h = functional.layer_norm(x, (shape.width,))
            q, k, v = (
                self._linear(h, f"{layer}.{name}", factors)
                .reshape(*h.shape[:-1], shape.heads, -1)
                .transpose(-2, -3)
                for name in ("q_proj", "k_proj", "v_proj")
            )
            scores = q @ k.mT / math.sqrt(shape.width // shape.heads) + mask
            mixed = (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
            x = x + self._linear(mixed, f"{layer}.out_proj", factors)
            h = functional.layer_norm(x, (shape.width,))
            h = self._linear(h, f"{layer}.fc1", factors).relu()
            x = x + self._linear(h, f"{layer}.fc2", factors)
        return functional.layer_norm(x, (shape.width,))


class _Adam:
    """Adam (Kingma and Ba 2015) on plain tensors; each UE's factors are separate entries."""

    def __init__(self, tensors: list[Tensor], rate: float) -> None:
        self.tensors, self.rate, self.count = tensors, rate, 0
        self.mean = [torch.zeros_like(t) for t in tensors]
        self.square = [torch.zeros_like(t) for t in tensors]

    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """One step."""
        b1, b2, tiny = _ADAM
        self.count += 1
        with torch.no_grad():
            for t, m, s, g in zip(self.tensors, self.mean, self.square, gradients, strict=True):
                m.mul_(b1).add_(g, alpha=1.0 - b1)
                s.mul_(b2).addcmul_(g, g, value=1.0 - b2)
                corrected = (s / (1.0 - b2**self.count)).sqrt_().add_(tiny)
                t.addcdiv_(m, corrected, value=-self.rate / (1.0 - b1**self.count))
