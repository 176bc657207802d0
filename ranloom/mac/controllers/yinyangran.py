"""``yinyangran``: an oracle that partitions the GPU once per second for that second's peak.

Public descriptions of YinYangRAN give a decision period of one second and 0.3 s for a
repartition under MPS; there is no public code. As in the paper (section 7.1) the partition is
granted oracle knowledge: the peak of the uncontrolled demand in the second to come.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def peak_plan(
    peak_sm: NDArray[np.int64], first_ul_index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Instantaneous repartition at the start of each second.

    Args:
        peak_sm: int64[n_seconds], peak demand of each second.
        first_ul_index: int64[n_seconds], first UL slot of each second.

    Returns:
        ``(ul_index, sm)`` of a plan, one entry per change.
    """
    changed = np.flatnonzero(np.diff(peak_sm, prepend=-1))
    return first_ul_index[changed], peak_sm[changed]


def switching_plan(
    peak_sm: NDArray[np.int64],
    first_ul_index: NDArray[np.int64],
    lead_ul_slots: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Repartition that takes time: it starts early, and both partitions are held meanwhile.

    A switch for second k starts ``lead_ul_slots`` before it and reserves the larger of the two
    partitions until the second begins.

    Args:
        peak_sm: int64[n_seconds].
        first_ul_index: int64[n_seconds].
        lead_ul_slots: UL slots of a switch, at most those of a second.

    Returns:
        ``(ul_index, sm)`` of a plan, one entry per change.
    """
    index = [int(first_ul_index[0])]
    sm = [int(peak_sm[0])]
    for k in range(1, len(peak_sm)):
        if peak_sm[k] == peak_sm[k - 1]:
            continue
        held = max(int(peak_sm[k]), int(peak_sm[k - 1]))
        for start, value in (
            (int(first_ul_index[k]) - lead_ul_slots, held),
            (int(first_ul_index[k]), int(peak_sm[k])),
        ):
            if value != sm[-1]:
                index.append(start)
                sm.append(value)
    return np.array(index, np.int64), np.array(sm, np.int64)
