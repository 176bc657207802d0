"""Sizes of LoRA updates from the shapes of real models.

LoRA (Hu et al., arXiv 2106.09685) adapts a linear layer of shape (out, in) by two factors,
``lora_A`` of shape (rank, in) and ``lora_B`` of shape (out, rank). A federated round ships these
factors, not the layer. Parameter names follow the PEFT library's, so that a real adapter fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ranloom.errors import InputError
from ranloom.federated.layout import TensorLayout

ALL_LINEAR = "all_linear"


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder-only transformer that decide the size of a LoRA update.

    Args:
        name: key of the shape table.
        layers: decoder layers.
        hidden: residual width d.
        intermediate: width of the feed-forward part.
        gated: whether the feed-forward part has a gate (Llama) or not (OPT).
        kv_width: output width of the key and value projections (d without grouped queries).
        source: where the dimensions come from, with any assumption.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    gated: bool
    kv_width: int
    source: str

    def linears(self) -> Mapping[str, tuple[int, int]]:
        """Linear modules of one decoder layer: module path to (out, in)."""
        d, f, kv = self.hidden, self.intermediate, self.kv_width
        attention = {
            "self_attn.q_proj": (d, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
        }
        if self.gated:
            return {
                **attention,
                "self_attn.o_proj": (d, d),
                "mlp.gate_proj": (f, d),
                "mlp.up_proj": (f, d),
                "mlp.down_proj": (d, f),
            }
        return {**attention, "self_attn.out_proj": (d, d), "fc1": (f, d), "fc2": (d, f)}

    @property
    def layer_prefix(self) -> str:
        """Path of the list of decoder layers in the Hugging Face implementation."""
        return "model.layers" if self.gated else "model.decoder.layers"


def _opt(size: str, layers: int, hidden: int, note: str = "") -> ModelShape:
    source = "arXiv 2205.01068 table 1, feed-forward 4 d" + (f"; {note}" if note else "")
    return ModelShape(f"opt-{size}", layers, hidden, 4 * hidden, False, hidden, source)


_TABLE = (
    ModelShape("toy", 2, 64, 256, False, 64, "no real model: small enough to aggregate in a test"),
    _opt("125m", 12, 768),
    _opt("350m", 24, 1024),
    _opt("1.3b", 24, 2048),
    _opt("2.7b", 32, 2560),
    _opt("6.7b", 32, 4096),
    _opt("13b", 40, 5120),
    _opt("30b", 48, 7168),
    _opt("66b", 64, 9216),
    _opt("70b", 80, 8192, "no OPT of 70 B was released: depth and width of Llama-2-70B assumed"),
    ModelShape("llama-2-7b", 32, 4096, 11008, True, 4096, "arXiv 2307.09288, released config"),
)
MODEL_SHAPES: Mapping[str, ModelShape] = MappingProxyType({shape.name: shape for shape in _TABLE})


def model_shape(name: str) -> ModelShape:
    """Shape by name.

    Raises:
        InputError: unknown name.
    """
    if name not in MODEL_SHAPES:
        raise InputError("model", name, f"allowed: {', '.join(MODEL_SHAPES)}")
    return MODEL_SHAPES[name]


def target_modules(shape: ModelShape, targets: Sequence[str]) -> list[str]:
    """Module paths of one layer that the targets mean.

    Args:
        shape: the model.
        targets: last parts of module paths (``q_proj``) or the single word ``all_linear``.

    Raises:
        InputError: no target, a target twice, or one that the model does not have.
    """
    by_name = {path.rsplit(".", 1)[-1]: path for path in shape.linears()}
    if list(targets) == [ALL_LINEAR]:
        return list(by_name.values())
    if not targets or len(set(targets)) != len(targets):
        raise InputError("targets", list(targets), "allowed: at least one module, each once")
    for target in targets:
        if target not in by_name:
            allowed = f"allowed for {shape.name}: {', '.join(by_name)} or {ALL_LINEAR} alone"
            raise InputError("targets", target, allowed)
    return [path for name, path in by_name.items() if name in targets]


def lora_layout(shape: ModelShape, rank: int, targets: Sequence[str]) -> TensorLayout:
    """Tensors of a LoRA update, layer by layer, factor A before factor B.

    Args:
        shape: the model.
        rank: LoRA rank, from 1 to the smallest dimension of a target.
        targets: see :func:`target_modules`.

    Raises:
        InputError: a rank or target that the model does not allow.
    """
    linears = shape.linears()
    paths = target_modules(shape, targets)
    largest = min(min(linears[path]) for path in paths)
    if not 1 <= rank <= largest:
        raise InputError("rank", rank, f"allowed: 1 to {largest} for {shape.name}")
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for layer in range(shape.layers):
        for path in paths:
            out_width, in_width = linears[path]
            stem = f"{shape.layer_prefix}.{layer}.{path}"
            tensors.append((f"{stem}.lora_A.weight", (rank, in_width)))
            tensors.append((f"{stem}.lora_B.weight", (out_width, rank)))
    return TensorLayout.of(tensors)
