"""Transfer demands: what the transport network is asked to carry in each strategy.

Both strategies carry the same updates in the same rounds:

* ``aggregate``: the parts of each wave. Released when the wave is closed, its last update
  checked and added, and the part encoded.
* ``per_ue``: each of those updates by itself, released when it is complete at the gNB (for one
  that was carried over: before the round that it counts in).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ranloom.federated.forecast import ReleaseHistory
from ranloom.federated.payload import payload_bytes
from ranloom.federated.radio import Uploads
from ranloom.federated.replay import JobReplay
from ranloom.federated.rounds import Population
from ranloom.federated.wave import part_bounds, part_count, split

PER_UE, AGGREGATE = "per_ue", "aggregate"


@dataclass(frozen=True)
class Shipping:
    """How waves leave a gNB.

    Args:
        dtype: wire format of the parts.
        elements: values of the full-size model's update, which decide the bytes.
        wave_max_bytes: largest part.
        core_gbytes_per_s: rate at which one core checks and adds an update, or encodes a part.
        latest_close_s: when a wave closes at the latest after the begin of its round: the
            forecast as long as nothing comparable has happened.
        update_tensor_bytes: bytes of the tensors that really are sent for an update.
    """

    dtype: str
    elements: int
    wave_max_bytes: int
    core_gbytes_per_s: float
    latest_close_s: float
    update_tensor_bytes: int

    def part_bytes(self) -> list[int]:
        """Bytes of each part of a wave."""
        parts = part_count(self.elements, self.dtype, self.wave_max_bytes)
        bounds = part_bounds(self.elements, parts)
        return [payload_bytes(self.dtype, end - first) for first, end in bounds]

    def seconds(self, size_bytes: int) -> float:
        """Computing time of the gNB's core for so many payload bytes."""
        return size_bytes / (self.core_gbytes_per_s * 1e9)


@dataclass(frozen=True)
class Transfer:
    """One demand; times in seconds on the simulation's axis."""

    demand_id: str
    job: str
    round: int
    wave: int
    part: int
    strategy: str
    gnb: int
    bytes: int
    release_p50_s: float
    release_p95_s: float
    release_s: float
    deadline_s: float
    sum_n: int
    updates: int
    payload_sha256: str
    tensor_bytes: int


def release_offsets(
    population: Population, uploads: Uploads, job: int, replay: JobReplay, shipping: Shipping
) -> list[tuple[int, str, int, float]]:
    """When waves were released, as (round, gNB, index, seconds after the round's begin)."""
    offsets = []
    for wave in replay.waves:
        begin_s = float(uploads.begin_s[job, wave.round])
        last_update_s = shipping.seconds(population.jobs[job].update_bytes)
        offsets.append((wave.round, wave.gnb, wave.index, wave.closed_s + last_update_s - begin_s))
    return offsets


def arrival_offsets(
    population: Population, uploads: Uploads, job: int, replay: JobReplay
) -> list[tuple[int, int, str, float]]:
    """When counted updates arrived: (round they count in, gNB, kind, seconds after its begin).

    The kind tells updates of the round itself (``own``) from those left over (``late``); left
    out is what was there before the begin.
    """
    offsets = []
    for fate in replay.fates:
        if fate.counted_round < 0 or fate.counted_round >= population.jobs[job].rounds:
            continue
        begin_s = float(uploads.begin_s[job, fate.counted_round])
        arrival_s = float(uploads.arrival_s[fate.ue, fate.round])
        kind = "own" if fate.fate == "delivered" else "late"
        if arrival_s > begin_s:
            offsets.append((fate.counted_round, fate.gnb, kind, arrival_s - begin_s))
    return offsets


def transfers(
    population: Population,
    uploads: Uploads,
    job: int,
    replay: JobReplay,
    shipping: Shipping,
    gnb_names: Sequence[str],
    waves_before: ReleaseHistory,
    updates_before: ReleaseHistory,
) -> list[Transfer]:
    """Demands of both strategies, ``per_ue`` first, by round, gNB and time.

    A round's forecast uses the given history and this run's earlier rounds, nothing of the
    round itself. What has arrived when the round begins is known, hence no forecast.

    Args:
        population: UEs and rounds.
        uploads: what the radio simulation made of them.
        job: index of the job.
        replay: waves and fates of that job.
        shipping: how waves leave a gNB.
        gnb_names: one for each gNB.
        waves_before: earlier releases of waves, grown here round by round.
        updates_before: earlier arrivals of updates, likewise.
    """
    number = {name: gnb for gnb, name in enumerate(gnb_names)}
    wave_offsets = release_offsets(population, uploads, job, replay, shipping)
    update_offsets = arrival_offsets(population, uploads, job, replay)
    rows: list[Transfer] = []
    for round_index in range(population.jobs[job].rounds):
        rows += _per_ue(population, uploads, job, replay, shipping, round_index, updates_before)
        rows += _aggregate(
            population, uploads, job, replay, shipping, round_index, number, waves_before
        )
        for of_round, name, index, offset_s in wave_offsets:
            if of_round == round_index:
                waves_before.add(number[name], index, offset_s)
        for of_round, gnb, kind, offset_s in update_offsets:
            if of_round == round_index:
                updates_before.add(gnb, kind, offset_s)
    return sorted(rows, key=lambda row: (row.strategy != PER_UE, row.round))


def _forecast(
    before: ReleaseHistory, gnb: int, kind: Hashable, begin_s: float, shipping: Shipping
) -> tuple[float, float]:
    offsets_s = before.forecast_s(gnb, kind, (0.5, 0.95)) or [shipping.latest_close_s] * 2
    return begin_s + offsets_s[0], begin_s + offsets_s[1]


def _per_ue(
    population: Population,
    uploads: Uploads,
    job: int,
    replay: JobReplay,
    shipping: Shipping,
    round_index: int,
    before: ReleaseHistory,
) -> list[Transfer]:
    spec = population.jobs[job]
    begin_s = float(uploads.begin_s[job, round_index])
    rows = []
    members = [f for f in replay.fates if f.counted_round == round_index and f.wave >= 0]
    for fate in sorted(members, key=lambda f: (f.gnb, uploads.arrival_s[f.ue, f.round])):
        release_s = float(uploads.arrival_s[fate.ue, fate.round])
        kind = "own" if fate.fate == "delivered" else "late"
        p50_s, p95_s = release_s, release_s
        if release_s > begin_s:
            p50_s, p95_s = _forecast(before, fate.gnb, kind, begin_s, shipping)
        name = population.names[fate.ue]
        rows.append(
            Transfer(
                demand_id=f"{PER_UE}/{spec.name}/{round_index}/{name}/{fate.round}",
                job=spec.name,
                round=round_index,
                wave=fate.wave,
                part=0,
                strategy=PER_UE,
                gnb=fate.gnb,
                bytes=spec.update_bytes,
                release_p50_s=p50_s,
                release_p95_s=p95_s,
                release_s=release_s,
                deadline_s=begin_s + spec.deadline_s,
                sum_n=int(population.n_k[fate.ue]),
                updates=1,
                payload_sha256=fate.payload_sha256,
                tensor_bytes=shipping.update_tensor_bytes,
            )
        )
    return rows


def _aggregate(
    population: Population,
    uploads: Uploads,
    job: int,
    replay: JobReplay,
    shipping: Shipping,
    round_index: int,
    number: Mapping[str, int],
    before: ReleaseHistory,
) -> list[Transfer]:
    spec = population.jobs[job]
    begin_s = float(uploads.begin_s[job, round_index])
    sizes = shipping.part_bytes()
    encoded_s = np.cumsum([shipping.seconds(size) for size in sizes])
    rows = []
    for wave in replay.waves:
        if wave.round != round_index:
            continue
        closed_s = wave.closed_s + shipping.seconds(spec.update_bytes)
        gnb = number[wave.gnb]
        p50_s, p95_s = _forecast(before, gnb, wave.index, begin_s, shipping)
        for part in split(wave, shipping.dtype, len(sizes)):
            later_s = float(encoded_s[part.index])
            rows.append(
                Transfer(
                    demand_id=f"{AGGREGATE}/{spec.name}/{round_index}/{wave.gnb}/"
                    f"{wave.index}/{part.index}",
                    job=spec.name,
                    round=round_index,
                    wave=wave.index,
                    part=part.index,
                    strategy=AGGREGATE,
                    gnb=gnb,
                    bytes=sizes[part.index],
                    release_p50_s=p50_s + later_s,
                    release_p95_s=p95_s + later_s,
                    release_s=closed_s + later_s,
                    deadline_s=begin_s + spec.deadline_s,
                    sum_n=wave.samples,
                    updates=len(wave.manifest),
                    payload_sha256=part.payload_sha256,
                    tensor_bytes=len(part.payload.data),
                )
            )
    return rows
