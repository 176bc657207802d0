"""Everything of this package beside Sionna (Apache-2.0), which shares no code with it.

``python -m ranloom.ldpc.against_sionna`` compares transport block sizes and segmentation on the
full grid, coded bits of random configurations, and errors of both decoders on the same noise. It
needs ``pip install sionna-no-rt``. Exit code 1 where they differ.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranloom.errors import InputError
from ranloom.ldpc.decoder import DecoderSettings
from ranloom.ldpc.transport_block import Receiver, TransportBlockFormat, encode_transport_block
from ranloom.nr.mcs import mcs_table
from ranloom.nr.numerology import MAX_PRB
from ranloom.nr.segmentation import segment_arrays
from ranloom.nr.tbs import Allocation, tbs_table, transport_block_bits

# symbols, DMRS and layers of both ends and the middle of what 38.214 allows
ALLOCATIONS = tuple(
    Allocation(table, layers, symbols, dmrs, 0)
    for table in (1, 2, 3)
    for symbols, dmrs, layers in ((14, 12, 1), (14, 24, 3), (12, 12, 2), (7, 24, 4), (3, 12, 1))
)
_Z_95 = 1.96


def sionna(module: str) -> Any:
    """A module of Sionna.

    Raises:
        InputError: Sionna is not installed.
    """
    try:
        return importlib.import_module(f"sionna.phy.{module}")
    except ImportError:
        raise InputError("sionna", "not installed", "needed: pip install sionna-no-rt") from None


def _tensor(values: Any, kind: str) -> Any:
    import torch

    return torch.as_tensor(np.ascontiguousarray(values), dtype=getattr(torch, kind))


def differing_mcs(table: int) -> int:
    """MCS of a table whose order or rate differ."""
    ours = mcs_table(table)
    order, rate = sionna("nr.utils").decode_mcs_index(
        _tensor(np.arange(ours.n_mcs), "int32"),
        table_index=table,
        is_pusch=True,
        transform_precoding=False,
    )
    same = (order.numpy() == ours.modulation_order) & np.isclose(rate.numpy(), ours.code_rate)
    return int((~same).sum())


def differing_sizes(allocation: Allocation, max_prb: int = MAX_PRB) -> int:
    """Pairs of MCS and PRB (from 1) whose TBS, code block size or number of code blocks differ."""
    ours = mcs_table(allocation.table)
    sizes = tbs_table(max_prb, **allocation.keywords)[:, 1:].astype(np.int64)
    blocks = segment_arrays(sizes, ours.code_rate_x2048[:, None])

    def everywhere(values: Any, kind: str = "int32") -> Any:
        return _tensor(np.broadcast_to(values, sizes.shape).ravel(), kind)

    theirs = sionna("nr.utils").calculate_tb_size(
        everywhere(ours.modulation_order[:, None]),
        everywhere(ours.code_rate[:, None], "float32"),
        num_prbs=everywhere(np.arange(1, max_prb + 1)),
        num_ofdm_symbols=everywhere(allocation.n_symbols),
        num_dmrs_per_prb=everywhere(allocation.n_dmrs_per_prb),
        num_layers=everywhere(allocation.n_layers),
        return_cw_length=False,
    )
    mine = (sizes, blocks.payload_bits, blocks.n_code_blocks)
    differs = [t.numpy() != m.ravel() for t, m in zip(theirs[:3], mine, strict=True)]
    return int(np.any(differs, axis=0).sum())


def random_formats(seed: int, max_prb: int = 120) -> Iterator[TransportBlockFormat]:
    """Random transport blocks of all tables, layers and lengths that Sionna can encode."""
    rng = np.random.default_rng(seed)
    while True:
        rows = mcs_table(int(rng.integers(1, 4)))
        mcs, n_prb = int(rng.integers(rows.n_mcs)), int(rng.integers(1, max_prb))
        layers, symbols = int(rng.integers(1, 5)), int(rng.integers(5, 15))
        allocation = Allocation(rows.index, layers, symbols, 12, 0)
        order = int(rows.modulation_order[mcs])
        form = TransportBlockFormat(
            transport_block_bits(n_prb, mcs, **allocation.keywords),
            float(rows.code_rate[mcs]),
            order,
            int(allocation.resource_elements(n_prb)) * order * layers,
            layers,
        )
        # Sionna repeats no bits: rates below that of the mother code are refused
        mother = 1 / 3 if form.segmentation.base_graph == 1 else 1 / 5
        if form.tbs_bits / form.coded_bits > 1.02 * mother:
            yield form


def their_encoder(form: TransportBlockFormat) -> Any:
    """Sionna's encoder of a format, without scrambling."""
    return sionna("nr").TBEncoder(
        target_tb_size=form.tbs_bits,
        num_coded_bits=form.coded_bits,
        target_coderate=form.code_rate,
        num_bits_per_symbol=form.modulation_order,
        num_layers=form.n_layers,
        use_scrambler=False,
    )


def differing_words(configurations: int, seed: int) -> int:
    """Random configurations whose coded bits differ."""
    rng, differing = np.random.default_rng(seed), 0
    for form in itertools.islice(random_formats(seed), configurations):
        bits = rng.integers(0, 2, form.tbs_bits, dtype=np.uint8)
        theirs = their_encoder(form)(_tensor(bits[None], "float32"))[0].numpy()
        differing += not np.array_equal(encode_transport_block(bits, form), theirs)
    return differing


@dataclass(frozen=True)
class ErrorCount:
    """Errors of one decoder: of transport blocks, and of their bits."""

    blocks: int
    block_errors: int
    bits: int
    bit_errors: int

    @property
    def bler(self) -> float:
        """Block error rate."""
        return self.block_errors / self.blocks

    @property
    def bler_interval(self) -> tuple[float, float]:
        """Its 95 % confidence interval (Wilson)."""
        n, z2 = self.blocks, _Z_95**2
        centre = (self.bler + z2 / (2 * n)) / (1 + z2 / n)
        spread = self.bler * (1 - self.bler) / n + z2 / (4 * n * n)
        half = _Z_95 * math.sqrt(spread) / (1 + z2 / n)
        return max(0.0, centre - half), min(1.0, centre + half)

    @property
    def ber(self) -> float:
        """Bit error rate after decoding."""
        return self.bit_errors / self.bits


@dataclass(frozen=True)
class Comparison:
    """Both decoders on the same noise.

    Args:
        ours, theirs: errors.
        ours_only, theirs_only: transport blocks that only one of them got wrong.
        ber_difference: ours less theirs.
        ber_half_interval: half of its 95 % confidence interval, from the differences by block.
    """

    ours: ErrorCount
    theirs: ErrorCount
    ours_only: int
    theirs_only: int
    ber_difference: float
    ber_half_interval: float

    @property
    def bler_difference(self) -> float:
        """BLER, ours less theirs."""
        return (self.ours_only - self.theirs_only) / self.ours.blocks

    @property
    def bler_half_interval(self) -> float:
        """Half of its 95 % confidence interval; the noise is the same, so only odd blocks count."""
        discordant = self.ours_only + self.theirs_only
        variance = discordant - (self.ours_only - self.theirs_only) ** 2 / self.ours.blocks
        # one block more on either side keeps the interval from collapsing at no difference
        return _Z_95 * math.sqrt(max(variance, 0.0) + 1.0) / self.ours.blocks


def bler_agrees(found: Sequence[Comparison]) -> bool:
    """Whether no difference of the BLER lies within the 95 % interval, over several points.

    Over all points together: of many single intervals some miss the true value by chance.
    """
    more = sum(c.bler_difference * c.ours.blocks for c in found)
    half = np.sqrt(sum((c.bler_half_interval * c.ours.blocks) ** 2 for c in found))
    return bool(abs(more) <= half)


def compare_decoders(
    form: TransportBlockFormat,
    settings: DecoderSettings,
    iterations: int,
    noise: float,
    blocks: int,
    seed: int,
) -> Comparison:
    """Decode the same BPSK-like noisy bits with both.

    Args:
        form: transport block.
        settings: our decoder.
        iterations: of Sionna's flooding offset min-sum.
        noise: standard deviation, at amplitude 1.
        blocks: transport blocks.
        seed: of bits and noise.
    """
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (blocks, form.tbs_bits), dtype=np.uint8)
    sent = np.stack([encode_transport_block(b, form) for b in bits])
    llr = 2 * (1 - 2.0 * sent + noise * rng.normal(size=sent.shape)) / noise**2
    mine = np.empty_like(bits)
    mine_hold = np.empty(blocks, dtype=np.bool_)
    for i, row in enumerate(llr):
        receiver = Receiver(form, settings)
        receiver.add(row)
        mine[i], mine_hold[i], _ = receiver.decode()
    decoder = sionna("nr").TBDecoder(
        their_encoder(form), num_bp_iter=iterations, cn_update="offset-minsum"
    )
    # Sionna's sign convention is the opposite: positive for a one
    parts = [decoder(_tensor(-part, "float32")) for part in np.array_split(llr, -(-blocks // 20))]
    theirs = np.concatenate([found.numpy() for found, _ in parts]).astype(np.uint8)
    theirs_hold = np.concatenate([holds.numpy() for _, holds in parts]).astype(np.bool_)
    wrong: list[NDArray[np.int64]] = [(m != bits).sum(axis=1) for m in (mine, theirs)]
    by_block = (wrong[0] - wrong[1]) / form.tbs_bits
    ours, other = (
        ErrorCount(blocks, int((~holds).sum()), bits.size, int(errors.sum()))
        for holds, errors in zip((mine_hold, theirs_hold), wrong, strict=True)
    )
    return Comparison(
        ours,
        other,
        int((~mine_hold & theirs_hold).sum()),
        int((mine_hold & ~theirs_hold).sum()),
        float(by_block.mean()),
        float(_Z_95 * by_block.std(ddof=1) / math.sqrt(blocks)),
    )


# (transport block, blocks, noise through its waterfall): base graph 2, base graph 1, two blocks
CASES = (
    (TransportBlockFormat(1032, 0.5, 2, 2064), 400, (0.86, 0.875, 0.89)),
    (TransportBlockFormat(3752, 0.8, 4, 4692), 200, (0.565, 0.575, 0.585)),
    (TransportBlockFormat(12040, 0.4, 2, 30104), 40, (0.995, 1.005, 1.015)),
)
ITERATIONS = 20
COLUMNS = (
    "tbs_bits,base_graph,code_blocks,code_rate,noise,blocks,ours_bler,ours_low,ours_high,"
    "sionna_bler,sionna_low,sionna_high,bler_difference,half_interval,ours_ber,sionna_ber,"
    "ber_difference,ber_half_interval"
)


def main(target: Path | None = None) -> int:
    """Compare everything, print it, and write the error rates where asked to."""
    import torch

    torch.set_num_threads(1)
    differing = sum(differing_mcs(table) for table in (1, 2, 3))
    print(f"MCS tables: {differing} rows differ")
    sizes, cells = 0, 0
    for allocation in ALLOCATIONS:
        sizes += differing_sizes(allocation)
        cells += mcs_table(allocation.table).n_mcs * MAX_PRB
    print(f"transport block sizes and segmentation: {sizes} of {cells} differ")
    words = differing_words(60, seed=50)
    print(f"coded bits: {words} of 60 random configurations differ")
    lines, apart = [], 0
    settings = DecoderSettings("flooding", "offset", 16, ITERATIONS)
    print(f"errors on the same noise, {ITERATIONS} iterations of flooding offset min-sum:")
    for form, blocks, noises in CASES:
        points = []
        for noise in noises:
            c = compare_decoders(form, settings, ITERATIONS, noise, blocks, seed=9)
            points.append(c)
            low, high = c.ours.bler_interval
            their_low, their_high = c.theirs.bler_interval
            seg = form.segmentation
            print(
                f"  TBS {form.tbs_bits:5d} ({seg.n_code_blocks} x base graph {seg.base_graph}), "
                f"noise {noise:.3f}, {blocks} blocks: BLER {c.ours.bler:.3f} [{low:.3f}, "
                f"{high:.3f}], Sionna {c.theirs.bler:.3f} [{their_low:.3f}, {their_high:.3f}], "
                f"difference {c.bler_difference:+.4f} +- {c.bler_half_interval:.4f}; BER "
                f"{c.ours.ber:.2e}, Sionna {c.theirs.ber:.2e}, difference "
                f"{c.ber_difference:+.1e} +- {c.ber_half_interval:.1e}"
            )
            lines.append(
                f"{form.tbs_bits},{seg.base_graph},{seg.n_code_blocks},{form.code_rate},{noise},"
                f"{blocks},{c.ours.bler:.4f},{low:.4f},{high:.4f},{c.theirs.bler:.4f},"
                f"{their_low:.4f},{their_high:.4f},{c.bler_difference:.4f},"
                f"{c.bler_half_interval:.4f},{c.ours.ber:.3e},{c.theirs.ber:.3e},"
                f"{c.ber_difference:.2e},{c.ber_half_interval:.2e}"
            )
        agrees = bler_agrees(points)
        apart += not agrees
        print(f"  -> {'no difference' if agrees else 'DIFFERENT'} at 95 %")
    if target is not None:
        note = "# our flooding int16 decoder beside Sionna's, same noise; 95 % intervals"
        target.write_text("\n".join([note, COLUMNS, *lines]) + "\n", encoding="utf-8")
    return int(bool(differing or sizes or words or apart))


if __name__ == "__main__":
    try:
        sys.exit(main(*(Path(a) for a in sys.argv[1:2])))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
