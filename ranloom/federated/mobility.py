"""When UEs change their gNB: a Poisson process, or a recorded walk replayed.

``python -m ranloom.federated.mobility data/mobility/walk.csv`` writes the generated walk. A file
has one row a second with the columns ``second`` and ``cell``; the 5Gophers walking trace
(``seq_num``, ``anonymized_mCid``) is read as it is.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError

_NAMES = (("second", "cell"), ("seq_num", "anonymized_mCid"))


@dataclass(frozen=True)
class Walk:
    """A recorded walk.

    Args:
        handover_s: seconds after its begin at which the serving cell changed, ascending.
        length_s: its length.
    """

    handover_s: tuple[float, ...]
    length_s: float


@dataclass(frozen=True)
class Mobility:
    """How UEs move.

    Args:
        moving_share: of the UEs; the others stay where they are.
        moves_per_hour: hand-overs of a moving UE, a Poisson process.
        walk: if given, moving UEs follow it instead, cyclically, each from a random second on.
    """

    moving_share: float
    moves_per_hour: float
    walk: Walk | None = None

    def times_s(self, end_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Hand-over times of one UE up to ``end_s``, ascending."""
        moves = rng.random() < self.moving_share
        if self.walk is None:
            count = int(rng.poisson(self.moves_per_hour * end_s / 3600.0))
            times: NDArray[np.float64] = np.sort(rng.random(count) * end_s)
        else:
            phase_s = rng.random() * self.walk.length_s
            cycles = np.arange(int(end_s // self.walk.length_s) + 2) * self.walk.length_s
            repeated = (cycles[:, None] + np.array(self.walk.handover_s)).ravel() - phase_s
            times = repeated[(repeated > 0.0) & (repeated < end_s)]
        return times if moves else times[:0]


def read_walk(path: Path) -> Walk:
    """Read a walk.

    Raises:
        InputError: the file is missing, lacks a column, has seconds that are no ascending whole
            numbers, or fewer than two rows.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = list(reader)
    except UnicodeDecodeError:
        raise InputError(str(path), "not UTF-8", "allowed: a CSV file") from None
    except OSError as error:
        raise InputError(str(path), error.strerror, "allowed: a CSV file") from None
    for names in _NAMES:
        if set(names) <= set(columns):
            break
    else:
        raise InputError(f"{path}: row 1", list(columns), "allowed: columns second, cell")
    if len(rows) < 2:
        raise InputError(str(path), f"{len(rows)} rows", "allowed: 2 or more")
    times: list[int] = []
    for number, row in enumerate(rows, start=2):
        text, cell = row[names[0]], row[names[1]]
        if text is None or not text.isdecimal() or (times and int(text) <= times[-1]):
            allowed = "allowed: whole seconds, ascending"
            raise InputError(f"{path}: row {number}: {names[0]}", text, allowed)
        if not cell:
            raise InputError(f"{path}: row {number}: {names[1]}", cell, "allowed: a cell's name")
        times.append(int(text))
    cells = [row[names[1]] for row in rows]
    changes = [float(times[i] - times[0]) for i in range(1, len(rows)) if cells[i] != cells[i - 1]]
    return Walk(tuple(changes), float(times[-1] - times[0] + 1))


def generate_walk(seconds: int, mean_dwell_s: float, seed: Sequence[int]) -> list[tuple[int, int]]:
    """(second, cell) of a walk whose stay in a cell is exponential; cells are numbered."""
    rng = np.random.default_rng(np.random.SeedSequence(list(seed)))
    rows, cell, leaves_s = [], 0, float(rng.exponential(mean_dwell_s))
    for second in range(seconds):
        while second >= leaves_s:
            cell += 1
            leaves_s += float(rng.exponential(mean_dwell_s))
        rows.append((second, cell))
    return rows


def write_walk(path: Path, rows: Sequence[tuple[int, int]]) -> None:
    """Write a file that :func:`read_walk` reads."""
    lines = ["second,cell"] + [f"{second},{cell}" for second, cell in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# ten hand-overs in ten minutes is what the 5Gophers walk has
WALK = {"seconds": 600, "mean_dwell_s": 60.0, "seed": (20260928, 60)}


if __name__ == "__main__":
    write_walk(Path(sys.argv[1]), generate_walk(**WALK))  # type: ignore[arg-type]
