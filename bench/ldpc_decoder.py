"""LDPC decoding on one core: our numba decoder and Sionna's, in the same run.

``python bench/ldpc_decoder.py`` prints a table and writes it into ``bench/results.json`` under
``ldpc_decoder``. CPU seconds, best of several. Sionna (flooding offset min-sum on one thread,
blocks of the same code) is in an environment of its own, which is made on first use; this script
starts itself anew in there, so that both decoders run in one process.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import _sionna
import numpy as np
from aggregation import cpu_s, show, store

from ranloom.gpu.card import load_card
from ranloom.gpu.latency import LatencyModel
from ranloom.ldpc.base_graph import base_graph
from ranloom.ldpc.decoder import DecoderSettings, decode
from ranloom.lut.backends import profile_model
from ranloom.lut.importers import ImportOptions
from ranloom.lut.profile import ProfileRequest
from ranloom.nr.tbs import Allocation

ROOT = Path(__file__).resolve().parent.parent
LIFTING_SIZE, ITERATIONS = 384, 10


def ours_us(graph_index: int, n_rows: int, schedule: str, message_bits: int) -> float:
    """Microseconds a code block and iteration."""
    graph = base_graph(graph_index)
    settings = DecoderSettings(schedule, "offset", message_bits, ITERATIONS, early_stop=False)
    rng = np.random.default_rng(1)
    llr = settings.quantise(rng.normal(1.0, 1.5, (1, graph.n_columns * LIFTING_SIZE)))
    spent = cpu_s(lambda: decode(llr, graph, LIFTING_SIZE, settings, n_rows), repeats=30)
    return spent / ITERATIONS * 1e6


def sionna_us(blocks: int = 16) -> float:
    """Microseconds a code block and iteration of Sionna."""
    import torch
    from sionna.phy.fec.ldpc import LDPC5GDecoder, LDPC5GEncoder

    torch.set_num_threads(1)
    encoder = LDPC5GEncoder(8448, 3 * 8448)  # base graph 1, lifting size 384, all rows
    decoder = LDPC5GDecoder(
        encoder, num_iter=ITERATIONS, cn_update="offset-minsum", hard_out=True, prune_pcm=False
    )
    llr = torch.tensor(np.random.default_rng(1).normal(-1.0, 1.5, (blocks, 3 * 8448)))
    with torch.no_grad():
        spent = cpu_s(lambda: decoder(llr.float()), repeats=3)
    return spent / ITERATIONS / blocks * 1e6


def full_lut_s() -> float:
    """Seconds for the whole lookup table: 29 MCS x 273 PRB x 6 SM counts."""
    wanted = ProfileRequest(
        Allocation(1, 1, 14, 12, 0),
        273,
        load_card(ROOT / "data" / "cards" / "dgx_spark.yaml"),
        800.0,
        99,
        LatencyModel(200.0, 2.332, 0.0084, 1.13),
        ROOT / "data" / "published" / "weaver.yaml",
        ROOT / "none",
        ImportOptions(48, 1.13),
    )

    def build() -> None:
        fresh = dataclasses.replace(wanted)  # decoder work included
        profile_model(fresh).lut(fresh)

    return cpu_s(build)


def main() -> None:
    """Run."""
    python = _sionna.interpreter()
    if python is not None and python != Path(sys.executable):
        os.execv(python, [str(python), *sys.argv])
    figures = {
        "bg1_z384_layered_int16_us": ours_us(1, 46, "layered", 16),
        "bg1_z384_layered_int8_us": ours_us(1, 46, "layered", 8),
        "bg1_z384_flooding_int8_us": ours_us(1, 46, "flooding", 8),
        "bg1_z384_flooding_int16_us": ours_us(1, 46, "flooding", 16),
        "bg1_z384_16_rows_layered_int16_us": ours_us(1, 16, "layered", 16),
        "bg1_z384_5_rows_layered_int16_us": ours_us(1, 5, "layered", 16),
        "bg2_z384_layered_int16_us": ours_us(2, 42, "layered", 16),
        "full_lut_s": full_lut_s(),
    }
    if python is not None:
        theirs = sionna_us()
        figures["sionna_bg1_z384_flooding_us"] = theirs
        figures["sionna_over_ours_layered_int16"] = theirs / figures["bg1_z384_layered_int16_us"]
        figures["sionna_over_ours_flooding_int16"] = theirs / figures["bg1_z384_flooding_int16_us"]
    store("ldpc_decoder", figures)
    show(figures)


if __name__ == "__main__":
    main()
