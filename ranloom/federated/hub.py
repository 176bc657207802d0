"""The destination: merges the waves of all gNBs into the round's average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.federated.accumulator import Accumulator
from ranloom.federated.payload import peak_magnitude
from ranloom.federated.wave import Wave, WavePart


@dataclass
class _Round:
    sums: Accumulator
    weight: float
    samples: int
    updates: dict[str, None]
    waves: dict[tuple[str, int], tuple[str, ...]]


class Hub:
    """Sums of waves by round; a second guard that no update counts twice.

    Args:
        elements: length of the vectors.
        arithmetic: of the sums; ``fixed64`` only if the gNBs use it too.
        fraction_bits: of ``fixed64``.
    """

    def __init__(self, elements: int, arithmetic: str, fraction_bits: int = 40) -> None:
        self._shape = (elements, arithmetic, fraction_bits)
        self._rounds: dict[int, _Round] = {}
        self._counted: dict[str, None] = {}

    def merge(self, wave: Wave, parts: Sequence[WavePart] | None = None) -> bool:
        """Add a wave.

        Args:
            wave: its sums are used as they are, unless ``parts`` are given.
            parts: the wave as it was shipped; its values are used instead of the sums.

        Returns:
            False for a wave that is already in: the same number from the same gNB in the same
            round with the same updates.

        Raises:
            InputError: such a wave with other updates, an update that another wave counted,
                or parts that leave out a value.
        """
        state = self._rounds.setdefault(
            wave.round, _Round(Accumulator(*self._shape), 0.0, 0, {}, {})
        )
        key = (wave.gnb, wave.index)
        where = f"wave {wave.gnb}/{wave.round}/{wave.index}"
        if key in state.waves:
            if state.waves[key] != wave.manifest:
                raise InputError(where, "other updates than before", "allowed: the same again")
            return False
        doubled = [update for update in wave.manifest if update in self._counted]
        if doubled:
            raise InputError(where, doubled[0], "allowed: updates that no other wave counts")
        state.sums.merge(wave.sums if parts is None else self._assemble(where, parts))
        state.weight += wave.weight
        state.samples += wave.samples
        state.waves[key] = wave.manifest
        state.updates.update(dict.fromkeys(wave.manifest))
        self._counted.update(dict.fromkeys(wave.manifest))
        return True

    def _assemble(self, where: str, parts: Sequence[WavePart]) -> Accumulator:
        whole = Accumulator(*self._shape)
        at = 0
        for part in sorted(parts, key=lambda p: p.first):
            if part.first != at:
                raise InputError(where, part.first, f"allowed: a part that begins at {at}")
            piece = Accumulator(part.payload.elements, whole.arithmetic, whole.fraction_bits)
            peak = peak_magnitude(part.payload)
            piece.add(part.payload, 1.0, peak)
            at += part.payload.elements
            whole.total[part.first : at] = piece.total
            whole.magnitude_bound = max(whole.magnitude_bound, peak)
        if at != whole.elements:
            raise InputError(where, at, f"allowed: parts with {whole.elements} values together")
        return whole

    def rounds(self) -> list[int]:
        """Rounds with at least one wave, ascending."""
        return sorted(self._rounds)

    def updates(self, round_index: int) -> list[str]:
        """Ids of the updates in a round's average."""
        return list(self._rounds[round_index].updates)

    def samples(self, round_index: int) -> int:
        """Sum of n_k in a round."""
        return self._rounds[round_index].samples

    def sums(self, round_index: int) -> Accumulator:
        """Weighted sums of a round."""
        return self._rounds[round_index].sums

    def average(self, round_index: int) -> NDArray[np.float64]:
        """sum(w_k x_k) / sum(w_k) of a round, shape (elements,)."""
        state = self._rounds[round_index]
        return state.sums.average(state.weight)


def flat_average(
    updates: Sequence[NDArray[np.float64]], weights: Sequence[float]
) -> NDArray[np.float64]:
    """FedAvg (McMahan et al., AISTATS 2017) in one place: the yardstick, correctly rounded sums.

    Args:
        updates: vectors of one length.
        weights: one weight each, positive.

    Raises:
        InputError: nothing to average.
    """
    if not updates:
        raise InputError("updates", 0, "allowed: at least one")
    products = np.asarray(weights, dtype=np.float64)[:, None] * np.asarray(updates)
    total = math.fsum(weights)
    return np.array([math.fsum(column) / total for column in products.T])


def relative_error(values: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Largest deviation relative to the RMS of the reference; 0 when both are zero."""
    rms = float(np.sqrt(np.mean(reference * reference)))
    worst = float(np.max(np.abs(values - reference)))
    return worst / rms if rms > 0.0 else worst
