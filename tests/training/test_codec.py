"""Messages to and from JSON."""

from __future__ import annotations

import json

import pytest

from ranloom.errors import InputError
from ranloom.training.codec import decode, encode, is_event
from ranloom.training.simulator.chaos import PATIENCE_S, chaos_world


def test_every_message_of_a_faulty_run_survives_json():
    seen = set()
    for seed in range(30):
        world, _ = chaos_world(seed, record_messages=True)
        world.run_until(PATIENCE_S)
        for _, message in world.record.messages:
            seen.add(type(message).__name__)
            text = json.dumps(encode(message))
            assert decode(json.loads(text)) == message
    assert {"Assign", "Reduce", "Inventory", "Copy", "Install", "TaskCompleted"} <= seen


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ("Tick", "message"),
        ({"type": "Tock"}, "message.type"),
        ({"type": "Tick", "extra": 1}, "Tick"),
        ({"type": "SiteLost", "site": 1}, "SiteLost"),
        ({"type": "SiteLost", "site": "1", "incarnation": 1}, "SiteLost.site"),
        ({"type": "SiteLost", "site": True, "incarnation": 1}, "SiteLost.site"),
        ({"type": "LayoutRequested", "boundaries": 3}, "LayoutRequested.boundaries"),
        ({"type": "LayoutRequested", "boundaries": [0, 1.5]}, "LayoutRequested.boundaries"),
    ],
)
def test_malformed_documents_are_refused_by_name(document, where):
    with pytest.raises(InputError) as caught:
        decode(document)
    assert str(caught.value).startswith(where)


def test_events_are_told_from_actions():
    assert is_event(decode({"type": "Tick"}))
    assert not is_event(decode({"type": "Fence", "site": 1, "incarnation": 1}))
