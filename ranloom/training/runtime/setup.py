"""What a run trains, in a form that every process can build and compare."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ranloom.training.costs import LayerCosts
from ranloom.training.data import GENERATED, Corpus, SampleOrder, load_corpus
from ranloom.training.layer_list import LayerListConfig, Model, measure
from ranloom.training.opt_model import ModelConfig
from ranloom.training.optimizer import OptimizerConfig
from ranloom.training.runtime.stage_worker import Workload


@dataclass(frozen=True)
class TrainingSetup:
    """What is trained, from which text, in which order.

    Args:
        model: what is trained: an OPT-shaped decoder, or the user's own list of layers.
        optimizer: update rule.
        source: ``generated`` or the path of a text.
        generated_samples: sentences to generate where the source is ``generated``.
        sequence_length: tokens of a sample.
        micro_batch_samples: samples in a micro-batch.
        seed: of text, order, initial values and dropout.
        check_pairs: probe pairs with which each site checks its matrix products; 0 checks none.
    """

    model: Model
    optimizer: OptimizerConfig
    source: str
    generated_samples: int
    sequence_length: int
    micro_batch_samples: int
    seed: int
    check_pairs: int = 0

    def with_absolute_source(self) -> TrainingSetup:
        """The same with a path that holds in any working folder."""
        if self.source == GENERATED:
            return self
        return replace(self, source=str(Path(self.source).resolve()))

    def corpus(self) -> Corpus:
        """The text.

        Raises:
            InputError: a file that cannot be used.
        """
        return load_corpus(self.source, self.seed, self.generated_samples, self.sequence_length)

    def order(self, corpus: Corpus) -> SampleOrder:
        """The global queue of samples."""
        return SampleOrder(self.seed, len(corpus), self.micro_batch_samples)

    def workload(self, device: str) -> Workload:
        """Everything that a site needs to compute."""
        corpus = self.corpus()
        order = self.order(corpus)
        return Workload(
            self.model, self.optimizer, corpus, order, self.seed, device, self.check_pairs
        )

    def facts(self, corpus: Corpus) -> str:
        """What has to be equal on every site, as JSON; the text counts by its content."""
        return json.dumps(
            {
                "model": asdict(self.model),
                "optimizer": asdict(self.optimizer),
                "text": corpus.fingerprint,
                "sequence_length": self.sequence_length,
                "micro_batch_samples": self.micro_batch_samples,
                "seed": self.seed,
            },
            sort_keys=True,
        )


def difference(ours: str, theirs: str) -> str:
    """Name and values of the first fact in which two setups differ; empty if they are equal."""
    try:
        found = json.loads(theirs)
    except ValueError:
        return "setup: no JSON"
    if not isinstance(found, dict):
        return "setup: no JSON object"
    for name, expected in json.loads(ours).items():
        value = found.get(name)
        if value == expected:
            continue
        if isinstance(expected, dict) and isinstance(value, dict):
            for field, wanted in expected.items():
                if value.get(field) != wanted:
                    return f"{name}.{field}: {value.get(field)!r}, allowed: {wanted!r}"
        return f"{name}: {value!r}, allowed: {expected!r}"
    return ""


def layer_costs(setup: TrainingSetup) -> LayerCosts:
    """What the layers cost a micro-batch, counted from the shape of the model.

    Matrix products count 2 operations a multiply-add, a backward pass twice a forward pass. The
    head counts to the last layer; looking up embeddings costs nothing, storing them does.
    """
    model = setup.model
    item = model.torch_dtype.itemsize
    forward, activations, boundary = (
        _list_costs(model, setup)
        if isinstance(model, LayerListConfig)
        else _decoder_costs(model, setup)
    )
    parameters = np.array(
        [
            sum(math.prod(s) for s in model.parameter_shapes(layer, layer + 1).values())
            for layer in range(model.layers)
        ],
        dtype=np.float64,
    )
    copies = {"sgd": 1 + (setup.optimizer.momentum > 0.0), "adamw": 3}[setup.optimizer.name]
    return LayerCosts(
        forward_flop=forward,
        backward_flop=2.0 * forward,
        weight_bytes=parameters * item * copies,
        gradient_bytes=parameters * item,
        activation_bytes=activations * item,
        boundary_bytes=boundary * item,
    )


Costs = tuple[np.ndarray, np.ndarray, float]
"""Operations of a forward pass [L], values kept for the backward pass [L], of a boundary."""


def _decoder_costs(model: ModelConfig, setup: TrainingSetup) -> Costs:
    length = setup.sequence_length
    tokens = setup.micro_batch_samples * length
    width, ffn = model.width, model.ffn_width
    block_flop = tokens * (2.0 * (4 * width**2 + 2 * width * ffn) + 4.0 * length * width)
    forward = np.full(model.layers, block_flop)
    forward[-1] += 2.0 * tokens * width * model.vocabulary
    scores = setup.micro_batch_samples * model.heads * length**2
    kept = np.full(model.layers, tokens * (10.0 * width + 2.0 * ffn) + 2.0 * scores)
    kept[-1] += 2.0 * tokens * model.vocabulary
    return forward, kept, float(tokens * width)


def _list_costs(model: LayerListConfig, setup: TrainingSetup) -> Costs:
    """Counted by running it; a layer is taken to keep four times its output."""
    sizes = measure(model, setup.micro_batch_samples, setup.sequence_length)
    values = np.array([math.prod(shape) for shape in sizes.shapes], dtype=np.float64)
    return np.array(sizes.forward_flop), 4.0 * values, float(values.max())
