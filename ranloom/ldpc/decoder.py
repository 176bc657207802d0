"""Min-sum decoders of the NR LDPC code in integer arithmetic (numba, one core).

Layered: rows are processed one after another, each sees the values that the rows before it
updated. Flooding: all rows see the values of the last iteration; converges in about twice the
iterations, but its rows are independent of each other, as a GPU wants them.

A row of the base graph is Z independent checks. An entry with shift s reads column values
``s .. Z-1, 0 .. s-1``: two contiguous runs, so that every loop runs over contiguous memory and
compiles to vector instructions. Helpers take few arrays each, because the compiler must prove at
run time that they do not overlap, and gives up on many. Messages of 8 bits are held in 16 like the
sums that they go into: mixed widths would cost half of the speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.base_graph import CORE_ROWS, BaseGraph

SCHEDULES = ("layered", "flooding")
CHECK_RULES = ("offset", "normalised")

# message width: (largest magnitude, quantisation steps per unit of LLR). The magnitudes keep
# every sum over a column (at most 30 messages) inside 16 bits.
_WIDTHS = {8: (127, 4), 16: (1023, 32)}
_OFFSET_LLR = 0.5

Ints = NDArray[Any]  # kernel arrays: int16 values and messages, int64 indices


@dataclass(frozen=True)
class DecoderSettings:
    """How to decode.

    Args:
        schedule: ``layered`` or ``flooding``.
        check_rule: ``offset`` (magnitude less 0.5) or ``normalised`` (three quarters of it).
        message_bits: width of check-to-variable messages, 8 or 16.
        iterations: most iterations.
        early_stop: stop a block as soon as all its parity checks hold.
    """

    schedule: str = "layered"
    check_rule: str = "offset"
    message_bits: int = 16
    iterations: int = 10
    early_stop: bool = True

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError("schedule", self.schedule, f"allowed: {', '.join(SCHEDULES)}")
        if self.check_rule not in CHECK_RULES:
            raise InputError("check_rule", self.check_rule, f"allowed: {', '.join(CHECK_RULES)}")
        if self.message_bits not in _WIDTHS:
            raise InputError("message_bits", self.message_bits, "allowed: 8 or 16")
        if self.iterations < 1:
            raise InputError("iterations", self.iterations, "allowed: at least 1")

    @property
    def limit(self) -> int:
        """Largest magnitude of a message."""
        return _WIDTHS[self.message_bits][0]

    @property
    def steps_per_llr(self) -> int:
        """Quantisation steps per unit of log-likelihood ratio."""
        return _WIDTHS[self.message_bits][1]

    @property
    def dtype(self) -> type[np.signedinteger]:
        """Narrowest type that holds a message."""
        return np.int8 if self.message_bits == 8 else np.int16

    @property
    def offset_and_shift(self) -> tuple[int, int]:
        """Check rule as ``max(m - (m >> shift) - offset, 0)`` on quantised magnitudes m."""
        if self.check_rule == "offset":
            return round(_OFFSET_LLR * self.steps_per_llr), self.message_bits - 1
        return 0, 2

    def quantise(self, llr: NDArray[np.float64]) -> NDArray[np.int16]:
        """Log-likelihood ratios as clipped integers, positive for a zero bit."""
        scaled = np.clip(np.rint(llr * self.steps_per_llr), -self.limit, self.limit)
        return scaled.astype(np.int16)


@dataclass(frozen=True, eq=False)
class Decoded:
    """Result of decoding a batch.

    Attributes:
        words: uint8[n_blocks, n_columns * Z], hard decisions.
        parity_ok: bool[n_blocks], whether all parity checks of the used rows hold.
        iterations: int64[n_blocks], iterations run.
    """

    words: NDArray[np.uint8]
    parity_ok: NDArray[np.bool_]
    iterations: NDArray[np.int64]


def check_input(
    llr: NDArray[np.int16], graph: BaseGraph, lifting_size: int, n_rows: int | None
) -> int:
    """Rows to use, of input that fits the code; arguments as for :func:`decode`.

    Raises:
        InputError: the input does not fit the code.
    """
    rows = graph.n_rows if n_rows is None else n_rows
    if not CORE_ROWS <= rows <= graph.n_rows:
        raise InputError("n_rows", rows, f"allowed: {CORE_ROWS} to {graph.n_rows}")
    width = graph.n_columns * lifting_size
    if llr.ndim != 2 or llr.shape[1] != width or llr.dtype != np.int16:
        raise InputError("llr", f"{llr.dtype}{list(llr.shape)}", f"needed: int16[blocks, {width}]")
    return rows


def decode(
    llr: NDArray[np.int16],
    graph: BaseGraph,
    lifting_size: int,
    settings: DecoderSettings,
    n_rows: int | None = None,
) -> Decoded:
    """Decode code blocks.

    Args:
        llr: int16[n_blocks, n_columns * Z], of :meth:`DecoderSettings.quantise`.
        graph: base graph.
        lifting_size: Z.
        settings: how.
        n_rows: rows of the base graph to use, see ``BaseGraph.rows_needed``; None for all.

    Raises:
        InputError: the input does not fit the code.
    """
    n_rows = check_input(llr, graph, lifting_size, n_rows)
    offset, shift = settings.offset_and_shift
    values = np.array(llr, dtype=np.int16, order="C")
    parity_ok = np.zeros(len(values), dtype=np.bool_)
    iterations = np.zeros(len(values), dtype=np.int64)
    row_starts = graph.row_starts[: n_rows + 1]
    widest = int(np.diff(row_starts).max())
    _decode_batch(
        values,
        np.empty((int(row_starts[-1]), lifting_size), np.int16),
        np.empty((widest, lifting_size), np.int16),
        np.empty((3, lifting_size), np.int16),
        graph.columns,
        graph.shifts(lifting_size),
        row_starts,
        lifting_size,
        settings.schedule == "layered",
        settings.iterations,
        settings.early_stop,
        np.int16(settings.limit),
        np.int16(offset),
        np.int16(shift),
        parity_ok,
        iterations,
    )
    return Decoded((values < 0).astype(np.uint8), parity_ok, iterations)


@njit(cache=True)
def _decode_batch(
    values: Ints, messages: Ints, fresh: Ints, scratch: Ints,
    columns: Ints, shifts: Ints, row_starts: Ints, z: int,
    layered: bool, iterations: int, early_stop: bool,
    limit: np.int16, offset: Any, shift: Any, parity_ok: NDArray[np.bool_], iterations_run: Ints,
) -> None:  # fmt: skip
    """Decode ``values`` in place: channel values on entry, a-posteriori values on exit."""
    n_rows = len(row_starts) - 1
    total = np.empty_like(values[0])
    channel = np.empty_like(values[0])
    for block in range(len(values)):
        app = values[block]
        channel[:] = app
        messages[:] = 0
        holds = _parity_holds(app, columns, shifts, row_starts, z)
        ran = 0
        while ran < iterations and not (holds and early_stop):
            if not layered:
                total[:] = channel
            for row in range(n_rows):
                first, last = row_starts[row], row_starts[row + 1]
                _check_row(
                    app, messages, fresh, scratch, columns, shifts, first, last, z, limit,
                    offset, shift,
                )  # fmt: skip
                for edge in range(first, last):
                    base, s = columns[edge] * z, shifts[edge]
                    new, old = fresh[edge - first], messages[edge]
                    if layered:
                        _replace(new[: z - s], old[: z - s], app[base + s : base + z])
                        _replace(new[z - s :], old[z - s :], app[base : base + s])
                    else:
                        _add(new[: z - s], old[: z - s], total[base + s : base + z])
                        _add(new[z - s :], old[z - s :], total[base : base + s])
            if not layered:
                app[:] = total
            ran += 1
            if early_stop or ran == iterations:
                holds = _parity_holds(app, columns, shifts, row_starts, z)
        parity_ok[block] = holds
        iterations_run[block] = ran


@njit(cache=True)
def _check_row(
    app: Ints, messages: Ints, fresh: Ints, scratch: Ints,
    columns: Ints, shifts: Ints, first: int, last: int, z: int,
    limit: np.int16, offset: Any, shift: Any,
) -> None:  # fmt: skip
    """New messages of one row into ``fresh``.

    Only the inputs of a check are clipped. The values of the variables stay exact sums of all
    messages: clipping them would lose a part that a later row takes away again.
    """
    smallest, second, signs = scratch[0], scratch[1], scratch[2]
    smallest[:] = limit
    second[:] = limit
    signs[:] = 0
    for edge in range(first, last):
        base, s = columns[edge] * z, shifts[edge]
        own, old = fresh[edge - first], messages[edge]
        _extrinsic(app[base + s : base + z], old[: z - s], own[: z - s], limit)
        _extrinsic(app[base : base + s], old[z - s :], own[z - s :], limit)
        _track(own, smallest, second, signs)
    for edge in range(first, last):
        _emit(fresh[edge - first], smallest, second, signs, offset, shift)


@njit(cache=True)
def _extrinsic(app: Ints, old: Ints, own: Ints, limit: np.int16) -> None:
    for i in range(len(own)):
        value = min(np.int16(app[i] - old[i]), limit)
        own[i] = max(value, np.int16(-limit))


@njit(cache=True)
def _track(own: Ints, smallest: Ints, second: Ints, signs: Ints) -> None:
    narrow = own.dtype.type  # numba widens small integers; casting back keeps vectors full
    for i in range(len(own)):
        value = own[i]
        magnitude = narrow(abs(value))
        least = smallest[i]
        second[i] = min(second[i], max(least, magnitude))
        smallest[i] = min(least, magnitude)
        signs[i] = narrow(signs[i] ^ value)


@njit(cache=True)
def _emit(own: Ints, smallest: Ints, second: Ints, signs: Ints, offset: Any, shift: Any) -> None:
    """Turn what each variable said into what the check says back, in place."""
    narrow = own.dtype.type
    for i in range(len(own)):
        # the least magnitude goes to all but its owner; equal ones make second equal too
        value, least = own[i], smallest[i]
        magnitude = second[i] if narrow(abs(value)) == least else least
        magnitude = narrow(magnitude - narrow(magnitude >> shift))
        magnitude = max(narrow(magnitude - offset), narrow(0))
        negative = narrow(signs[i] ^ value) < 0
        own[i] = narrow(-magnitude) if negative else magnitude


@njit(cache=True)
def _replace(new: Ints, old: Ints, app: Ints) -> None:
    for i in range(len(app)):
        message = new[i]
        app[i] = np.int16(app[i] + np.int16(message - old[i]))
        old[i] = message


@njit(cache=True)
def _add(new: Ints, old: Ints, total: Ints) -> None:
    for i in range(len(total)):
        message = new[i]
        total[i] = np.int16(total[i] + message)
        old[i] = message


@njit(cache=True)
def _parity_holds(app: Ints, columns: Ints, shifts: Ints, row_starts: Ints, z: int) -> bool:
    """Whether the signs of ``app`` satisfy every row; stops at the first that does not."""
    checks = np.empty(z, np.int16)
    for row in range(len(row_starts) - 1):
        checks[:] = 0
        for edge in range(row_starts[row], row_starts[row + 1]):
            base, s = columns[edge] * z, shifts[edge]
            _flip(app[base + s : base + z], checks[: z - s])
            _flip(app[base : base + s], checks[z - s :])
        if checks.min() < 0:
            return False
    return True


@njit(cache=True)
def _flip(app: Ints, checks: Ints) -> None:
    for i in range(len(checks)):
        checks[i] = np.int16(checks[i] ^ app[i])
