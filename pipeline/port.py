"""Whether a port is free, said before a server starts.

What the servers themselves say comes late and beside other lines, and MLflow then ends with 0.
The Makefile calls ``python -m pipeline.port TARGET VARIABLE PORT``.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from pipeline.runner import refuse
from pipeline.stage import Fault

_ADDRESS = "127.0.0.1"
_PORTS = range(1024, 65536)


def is_free(port: int) -> bool:
    """Whether a server can listen on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            probe.bind((_ADDRESS, port))
        except OSError:
            return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Refuse, in one line, a port that cannot be used.

    Args:
        arguments: make target that starts the server, make variable of its port, the port.

    Returns:
        Exit code; 2 where the port is taken or none.
    """
    target, variable, given = arguments
    if not given.isdecimal() or int(given) not in _PORTS:
        return refuse([Fault(variable, given, f"a port, {_PORTS[0]} to {_PORTS[-1]}").line()])
    port = int(given)
    if is_free(port):
        return 0
    other = next((p for p in [*_PORTS[port + 1 - _PORTS[0] :], *_PORTS] if is_free(p)), port)
    helps = f"taken on {_ADDRESS}: end what listens there, or `make {target} {variable}={other}`"
    return refuse([Fault(variable, port, helps).line()])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
