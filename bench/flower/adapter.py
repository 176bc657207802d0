"""A gNB as one Flower client: its waves of a round become one reply.

Flower's FedAvg weights each client's arrays by its ``num-examples``. A gNB answers with the
weighted average of its UEs' updates in float64 and the sum of their weights, so Flower's average
over gNBs is the flat average over UEs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ranloom.federated.accumulator import Accumulator
from ranloom.federated.layout import TensorLayout
from ranloom.federated.wave import Wave

RunRound = Callable[[int, dict[str, np.ndarray]], Sequence[Wave]]


def reply_content(waves: Sequence[Wave], layout: TensorLayout) -> RecordDict:
    """Arrays and weight of a gNB's waves; a gNB without updates answers zeros of weight 0."""
    total = Accumulator(layout.elements, "float64")
    weight = 0.0
    for wave in waves:
        total.total += wave.sums.sums()
        weight += wave.weight
    average = total.total / weight if weight else total.total
    arrays = {name: Array(np.ascontiguousarray(a)) for name, a in layout.unflatten(average).items()}
    return RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord(
                {"num-examples": weight, "updates": sum(len(w.manifest) for w in waves)}
            ),
        }
    )


def gnb_client(layout: TensorLayout, run_round: RunRound) -> ClientApp:
    """A Flower client that is a gNB.

    Args:
        layout: tensors of the job.
        run_round: given the round and the global tensors, lets the gNB's UEs train and returns
            the closed waves.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:  # noqa: ARG001
        config = message.content["config"]
        arrays = {name: a.numpy() for name, a in message.content["arrays"].items()}
        waves = run_round(int(config["server-round"]), arrays)
        return Message(content=reply_content(waves, layout), reply_to=message)

    return app
