"""Hierarchical equals flat, whatever happens on the way: hand-over, duplicates, reordering."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranloom.federated.accumulator import Accumulator
from ranloom.federated.aggregator import Aggregator
from ranloom.federated.hub import Hub, flat_average, relative_error
from ranloom.federated.payload import decode, peak_magnitude
from ranloom.federated.update import Counted, Duplicate, Refused
from tests.federated.builders import CONFIG, LAYOUT, WAIT, chunks_of, update

GNBS = 3
ROUNDS = 3
PERIOD_S = 100.0


@dataclass
class Network:
    """Some UEs at some gNBs, and what the UEs themselves saw."""

    rng: np.random.Generator
    late: str
    arithmetic: str
    counted: dict[str, Counted] = field(default_factory=dict)
    sent: dict[str, tuple] = field(default_factory=dict)
    waves: list = field(default_factory=list)

    def __post_init__(self):
        rule = replace(WAIT, max_s=60.0)
        self.gnbs = [
            Aggregator(
                replace(
                    CONFIG,
                    gnb=f"gnb_{i}",
                    arithmetic=self.arithmetic,
                    late=self.late,
                    cut_off=rule,
                    stall_s=45.0,
                    wave_max_s=25.0,
                )
            )
            for i in range(GNBS)
        ]
        # the last gNB starts empty
        self.serving = {f"ue{i}": int(self.rng.integers(GNBS - 1)) for i in range(6)}
        for ue, gnb in self.serving.items():
            self.gnbs[gnb].attach(ue, 0.0)

    def step(self, now_s, current_round):
        rng = self.rng
        ue = f"ue{rng.integers(6)}"
        round_index = max(0, current_round - int(rng.integers(2)))
        dtype = ("fp32", "fp16", "int8")[int(rng.integers(3))]
        n_k = int(rng.integers(1, 50))
        update_id = f"job/{round_index}/{ue}"
        header, payload = self.sent.setdefault(update_id, update(ue, round_index, n_k, dtype))
        here = self.serving[ue]
        gnb = self.gnbs[here]
        action = rng.integers(10)
        if action == 0:
            there = int(rng.integers(GNBS))
            context = gnb.detach(ue, now_s, keep_chunks=bool(rng.integers(2)))
            self.gnbs[there].attach(ue, now_s, context)
            self.serving[ue] = there
        elif action == 1:
            # a message that went astray to another gNB
            stray = self.gnbs[int(rng.integers(GNBS))]
            self.note(stray.offer(header, now_s) if rng.integers(2) else None)
            self.note(stray.chunk(update_id, 0, chunks_of(payload)[0], now_s))
        elif action == 2:
            gnb.chunk(update_id, 0, bytes(len(chunks_of(payload)[0])), now_s)
            known = gnb.ledger.get(update_id)
            if known is not None and known.state != "dropped":
                answer = gnb.offer(replace(header, n_k=header.n_k + 1), now_s)
                assert answer == Refused(update_id, "conflicting_content")
        elif action == 3:
            self.note(gnb.withdraw(update_id, now_s))
        else:
            chunks = chunks_of(payload)
            self.note(gnb.offer(header, now_s))
            some = rng.permutation(len(chunks))[: int(rng.integers(1, len(chunks) + 3))]
            for index in some:
                self.note(gnb.chunk(update_id, int(index), chunks[index], now_s))
        self.check_accounts()

    def note(self, answer):
        if isinstance(answer, Counted):
            assert answer.update_id not in self.counted, "counted twice"
            self.counted[answer.update_id] = answer
        if isinstance(answer, Duplicate):
            assert answer.update_id in self.counted, "called a duplicate, but never counted"

    def check_accounts(self):
        for gnb in self.gnbs:
            a = gnb.ledger.account
            assert min(vars(a).values()) >= 0
            assert a.offered == a.staged + a.delivered + a.carried + a.dropped + a.handed_over
            self.waves += gnb.take_waves()

    def run(self):
        for round_index in range(ROUNDS + 1):
            begin_s = round_index * PERIOD_S
            for gnb in self.gnbs:
                here = {ue for ue, at in self.serving.items() if self.gnbs[at] is gnb}
                last = round_index == ROUNDS
                gnb.begin_round(round_index, begin_s, set() if last else here)
            self.check_accounts()
            steps = 0 if round_index == ROUNDS else 40
            for now_s in begin_s + np.sort(self.rng.uniform(0, PERIOD_S, steps)):
                self.step(float(now_s), round_index)
        for gnb in self.gnbs:
            gnb.tick(1e4)
        self.check_accounts()


@given(
    seed=st.integers(0, 2**32),
    late=st.sampled_from(["carry_over", "carry_discount", "drop"]),
    arithmetic=st.sampled_from(["float64", "fixed64"]),
)
@settings(max_examples=60, deadline=None)
def test_hierarchical_equals_flat_under_any_schedule(seed, late, arithmetic):
    network = Network(np.random.default_rng(seed), late, arithmetic)
    network.run()
    hub = Hub(LAYOUT.elements, arithmetic)
    for index in network.rng.permutation(len(network.waves)):
        assert hub.merge(network.waves[index])
        assert not hub.merge(network.waves[index])

    in_waves = [u for r in hub.rounds() for u in hub.updates(r)]
    assert sorted(in_waves) == sorted(network.counted)
    for round_index in hub.rounds():
        answers = [network.counted[u] for u in hub.updates(round_index)]
        assert {a.round for a in answers} == {round_index}
        sent = [network.sent[a.update_id] for a in answers]
        alpha = CONFIG.alpha if late == "carry_discount" else 0.0
        weights = [
            round(h.n_k * (1 + a.staleness) ** -alpha * 2**20) / 2**20
            for a, (h, _) in zip(answers, sent, strict=True)
        ]
        flat = flat_average([decode(p) for _, p in sent], weights)
        error = relative_error(hub.average(round_index), flat)
        if arithmetic == "float64":
            assert error < 1e-12
        else:
            one = Accumulator(LAYOUT.elements, "fixed64")
            for (_, p), w in zip(sent, weights, strict=True):
                one.add(p, w, peak_magnitude(p))
            assert np.array_equal(hub.sums(round_index).total, one.total)
            assert error < 1e-8
        assert hub.samples(round_index) == sum(h.n_k for h, _ in sent)

    counted_samples = sum(network.sent[u][0].n_k for u in network.counted)
    accounts = [gnb.ledger.account for gnb in network.gnbs]
    assert sum(a.delivered + a.carried for a in accounts) == counted_samples
    if late == "drop":
        assert all(a.carried == 0 for a in accounts)


@pytest.mark.parametrize("partition_seed", range(20))
def test_any_partition_of_a_fixed_set_gives_the_same_bits(partition_seed):
    rng = np.random.default_rng(partition_seed)
    sent = [update(f"u{i}", 0, 7 * i + 1, "fp16") for i in range(12)]
    totals = []
    for gnbs in (1, 4):
        hub = Hub(LAYOUT.elements, "fixed64")
        at = rng.integers(gnbs, size=12)
        for gnb in range(gnbs):
            machine = Aggregator(replace(CONFIG, gnb=f"gnb_{gnb}", arithmetic="fixed64"))
            mine = [k for k in rng.permutation(12) if at[k] == gnb]
            for k in mine:
                machine.attach(f"u{k}", 0.0)
            machine.begin_round(0, 0.0, {f"u{k}" for k in mine})
            for k in mine:
                machine.offer(sent[k][0], 1.0)
                for index, data in enumerate(chunks_of(sent[k][1])):
                    machine.chunk(sent[k][0].update_id, index, data, 1.0)
            machine.tick(1e3)
            for wave in machine.take_waves():
                hub.merge(wave)
        totals.append(hub.sums(0).total)
    assert np.array_equal(*totals)
