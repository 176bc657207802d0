"""The MLflow run of a stage, kept by a process beside it.

MLflow takes about two seconds of CPU to import and open, as much as a short stage needs. The
recorder, forked as the stage starts, does that while the stage is at work, and is told over a pipe
what happens. A pipe that ends without a last word is a stage that was killed.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.processes import Owner
from pipeline.tracking import Projection, advisory, enabled

if TYPE_CHECKING:
    from pipeline.stage import Stage

_LIVE_FLUSH_S = 1.0
_LIVE_BATCH = 1000
_MESSAGE_BYTES = 2**20


class LiveRun:
    """Handle of a running stage; calling it streams one advisory live metric."""

    def __init__(self, recorder: _Recorder | None = None) -> None:
        self._recorder = recorder
        self._pending: list[tuple[str, float, int, int]] = []
        self._flushed_s = 0.0

    def __call__(self, name: str, value: float, step: int) -> None:
        """Stream ``live/<name>``; values are sent in batches about once a second."""
        self._pending.append((f"live/{name}", value, int(time.time() * 1000), step))
        if time.monotonic() - self._flushed_s > _LIVE_FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Send what is pending."""
        if self._recorder is not None:
            for i in range(0, len(self._pending), _LIVE_BATCH):
                self._recorder.tell("metrics", self._pending[i : i + _LIVE_BATCH])
        self._pending = []
        self._flushed_s = time.monotonic()

    def finish(self) -> None:
        """Have the finished stage logged from its outs; call it once they are in place."""
        self.flush()
        if self._recorder is not None:
            self._recorder.end("finish")


@contextmanager
def stage_run(root: Path, stages: Mapping[str, Stage], name: str) -> Iterator[LiveRun]:
    """Project one execution of a stage, from its start to its end.

    MLflow is advisory: a fault of the store is reported on stderr and costs no result.

    Args:
        root: workspace with ``dvc.yaml``.
        stages: declarations, of this stage at least.
        name: the stage that starts.
    """
    recorder = advisory(lambda: _Recorder(root, stages, name)) if enabled() else None
    live = LiveRun(recorder)
    if recorder is None:
        yield live
        return
    try:
        yield live
    except BaseException as error:
        live.flush()
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        recorder.end("fail", status, f"{type(error).__name__}: {error}")
        raise
    recorder.end("fail", "FAILED", "it ended without a result")


class _Recorder:
    """The stage's side of the pipe."""

    def __init__(self, root: Path, stages: Mapping[str, Stage], name: str) -> None:
        projection = Projection(root, stages)
        projection.identify(name)  # now: whoever edits a file from here on edits the next execution
        context = multiprocessing.get_context("fork")
        theirs, self._messages = context.Pipe(duplex=False)
        arguments = (projection, name, Owner.current(), theirs, self._messages)
        self._process = context.Process(target=_record, args=arguments, name=f"recorder of {name}")
        sys.stdout.flush()
        sys.stderr.flush()
        self._process.start()
        theirs.close()

    def tell(self, kind: str, *content: object) -> None:
        """Send one message; a recorder that has nothing to record has ended, and none is missed."""
        with suppress(BrokenPipeError):
            self._messages.send_bytes(json.dumps([kind, *content]).encode())

    def end(self, kind: str, *content: object) -> None:
        """Send the last message and wait until it is logged; there is no second end."""
        if not self._messages.closed:
            self.tell(kind, *content)
            self._messages.close()
            self._process.join()


def _record(
    projection: Projection, name: str, owner: Owner, messages: Connection, senders: Connection
) -> None:
    """Body of the recorder: keep the run of one stage until the stage ends."""
    senders.close()  # else the pipe would not end with the stage
    for signum in (signal.SIGINT, signal.SIGTERM):  # the stage says how it ends
        signal.signal(signum, signal.SIG_IGN)
    run = advisory(lambda: projection.start(name, owner))
    if run is None:
        return
    advisory(projection.read_ahead)
    while True:
        try:
            kind, *content = json.loads(messages.recv_bytes(_MESSAGE_BYTES))
        except EOFError:
            kind, content = "fail", ["KILLED", "the process ended"]
        if kind != "metrics":
            break
        advisory(partial(projection.stream, run, content[0]))
    if kind == "finish":
        advisory(lambda: projection.finish(run, name))
    else:
        advisory(lambda: projection.fail(run, *content))
