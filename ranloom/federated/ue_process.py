"""A UE as a process: sends one update to a gNB's aggregator and waits for its fate.

``python -m ranloom.federated.ue_process tcp://127.0.0.1:5601 --job chat --ue ue7 --round 0 --n-k 12
--dtype fp16 --tensors adapter.safetensors`` may be killed and started again at any time: the
aggregator asks only for what it does not have. Exit code 0: counted (also when it was before),
1: refused, 2: input that cannot be used, 3: no answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ranloom.errors import InputError
from ranloom.federated.client import NoAnswerError, UeClient, layout_of
from ranloom.federated.payload import WIRE_DTYPES, encode


def main(arguments: list[str] | None = None) -> int:
    """Send an update; prints the answer as one line of JSON."""
    parser = argparse.ArgumentParser(prog="ranloom.federated.ue_process", description="a UE")
    parser.add_argument("endpoint", help="the aggregator's address for UEs")
    parser.add_argument("--job", required=True, help="federated job")
    parser.add_argument("--ue", required=True, help="name of this UE")
    parser.add_argument("--round", type=int, required=True, help="round it trained for")
    parser.add_argument("--n-k", type=int, required=True, help="samples it trained on")
    parser.add_argument("--dtype", choices=WIRE_DTYPES[:-1], default="fp16", help="wire format")
    parser.add_argument("--tensors", type=Path, required=True, help="update, safetensors")
    parser.add_argument("--timeout-s", type=float, default=1.0, help="before asking again")
    parser.add_argument("--give-up-s", type=float, default=60.0, help="before giving up")
    options = parser.parse_args(arguments)
    client = UeClient(options.endpoint, options.timeout_s, options.give_up_s)
    try:
        arrays = load_file(options.tensors)
        layout = layout_of(client.describe())
        flat = layout.flatten({name: np.asarray(a, np.float64) for name, a in arrays.items()})
        payload = encode(flat, options.dtype)
        update_id = f"{options.job}/{options.round}/{options.ue}"
        answer = client.send_update(update_id, options.ue, options.round, options.n_k, payload)
    except (InputError, SafetensorError, FileNotFoundError) as error:
        print(f"{options.tensors}: {error}", file=sys.stderr)
        return 2
    except NoAnswerError as error:
        print(error, file=sys.stderr)
        return 3
    finally:
        client.close()
    print(json.dumps(answer))
    return 1 if answer["kind"] == "refused" else 0


if __name__ == "__main__":
    sys.exit(main())
