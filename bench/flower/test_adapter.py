"""Flower's FedAvg over gNB clients equals flat FedAvg over their UEs."""

from __future__ import annotations

import numpy as np
from adapter import gnb_client
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from ranloom.federated.hub import flat_average, relative_error
from ranloom.federated.payload import decode
from tests.federated.builders import LAYOUT, send, started, update


def test_a_federation_of_gnbs_is_the_flat_one():
    members = {"gnb_00": range(7), "gnb_01": range(7, 9), "gnb_02": range(9, 9)}
    sent = {i: update(f"u{i}", 0, 10 * i + 3, "fp16") for i in range(9)}
    seen = []

    def serve(gnb):
        def run_round(server_round, tensors):
            seen.append((server_round, sorted(tensors)))
            machine = started(*[f"u{i}" for i in members[gnb]], gnb=gnb)
            for i in members[gnb]:
                send(machine, *sent[i], 1.0)
            machine.tick(1e3)
            return machine.take_waves()

        return run_round

    TaskIdentity.task_id, TaskIdentity.run_id = 1, 1  # set by Flower's runtime otherwise
    replies = []
    for number, gnb in enumerate(members, start=1):
        TaskIdentity.node_id = number
        app = gnb_client(LAYOUT, serve(gnb))
        content = RecordDict(
            {
                "arrays": ArrayRecord({t.name: Array(np.zeros(t.shape)) for t in LAYOUT.tensors}),
                "config": ConfigRecord({"server-round": 1}),
            }
        )
        message = Message(content=content, message_type="train", dst_node_id=number)
        context = Context(
            run_id=1, node_id=number, node_config={}, state=RecordDict(), run_config={}
        )
        replies.append(app(message, context))
    arrays, metrics = FedAvg().aggregate_train(1, replies)
    flower = np.concatenate([arrays[t.name].numpy().ravel() for t in LAYOUT.tensors])
    flat = flat_average(
        [decode(p) for _, p in sent.values()], [float(h.n_k) for h, _ in sent.values()]
    )
    assert relative_error(flower, flat) < 1e-12
    assert seen == [(1, ["lora_A", "lora_B"])] * 3
    assert "updates" in metrics
