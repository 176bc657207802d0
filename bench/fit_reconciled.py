"""Fit of the reconciled assumptions: WEAVER's OPT-1.3B on the testbed and OPT-13B on Typical-128.

``python bench/fit_reconciled.py`` prints, for each share of the pipeline's time that hides sums,
both predictions beside the published rates, and the share with the smallest largest error: the
value of ``train_sites.reconciled.hidden_share``. Needs the outs of ``replay_spare``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipeline import params as parameters
from ranloom.gpu.card import load_card
from ranloom.report.data import load_published
from ranloom.training.links import read_links
from ranloom.training.simulator.comparison import figures
from stages._train_sim import RECONCILED, Sites, both, compare, scale
from stages.train_sites import STAGE

ROOT = Path(__file__).resolve().parent.parent
SHARES = np.arange(0.0, 0.21, 0.02)


def main() -> None:
    """Scan and print."""
    document = parameters.load(ROOT / "params.yaml")
    block = document["train_sites"]
    params = STAGE.params(**block, base={"seed": document["base"]["seed"]})
    params = params.model_copy(
        update={
            "sim": params.sim.model_copy(update={"models": ("opt-1.3b",), "systems": ("weaver",)}),
            "scaling": params.scaling.model_copy(update={"sites": (128,), "large_models": ()}),
        }
    )
    table = pq.read_table(ROOT / "outs/replay_spare/spare.parquet")
    spare = {n: table.column(n).to_numpy(zero_copy_only=False) for n in table.column_names}
    sites = Sites(load_card(ROOT / block["card"]), read_links(ROOT / block["links"]), spare)
    published = load_published(ROOT / "data/published/weaver.yaml")
    wanted = (
        published["testbed_training"]["opt-1.3b"]["weaver_tokens_per_s"],
        1000.0 * published["scaling_opt_13b_ktokens_per_s"]["typical"]["weaver"][0],
    )
    best = (np.inf, 0.0)
    for share in SHARES:
        assumptions = replace(both(params)[RECONCILED], hidden_share=float(share))
        ((experiment, done),) = compare(
            params, assumptions, sites, params.sim.models, params.sim.systems
        )
        rows = scale(params, assumptions, sites)
        typical = next(
            row["tokens_per_s"]
            for row in rows
            if row["setting"] == "typical" and row["system"] == "weaver"
        )
        found = (figures(experiment, done, 8).tokens_per_s, typical)
        error = max(abs(np.log(one / other)) for one, other in zip(found, wanted, strict=True))
        best = min(best, (error, float(share)))
        ratios = ", ".join(f"{a:9.0f} ({a / b:.3f})" for a, b in zip(found, wanted, strict=True))
        print(f"hidden share {share:.2f}: {ratios}  largest error {100 * np.expm1(error):.1f} %")
    print(f"best: {best[1]:.2f}")


if __name__ == "__main__":
    main()
