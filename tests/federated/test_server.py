"""The aggregator as a process: real sockets, real kills."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import zmq
from safetensors.numpy import save_file

from ranloom.errors import InputError
from ranloom.federated.accumulator import Accumulator
from ranloom.federated.client import CoreClient, NoAnswerError, UeClient
from ranloom.federated.layout import TensorLayout
from ranloom.federated.payload import encode, peak_magnitude
from ranloom.federated.protocol import encode_message
from ranloom.federated.server import main
from ranloom.federated.server_config import read_config
from ranloom.federated.update import UpdateHeader
from tests.federated.builders import values_of

LAYOUT = TensorLayout.of([("lora_A", (8, 512)), ("lora_B", (512, 8))])
FILE = {
    "gnb": "gnb_00",
    "tensors": [(t.name, list(t.shape)) for t in LAYOUT.tensors],
    "arithmetic": "fixed64",
    "fraction_bits": 40,
    "chunk_bytes": 2048,
    "staging_bytes": 200_000,
    "stall_s": 30.0,
    "cut_off": {"policy": "fixed", "min_s": 0.0, "max_s": 60.0, "quorum": 1.0, "mad_factor": 0.0},
    "wave_max_s": 60.0,
    "late": "carry_over",
    "alpha": 0.0,
    "max_staleness": 3,
}


class Process:
    """A server process that keeps its addresses over restarts."""

    def __init__(self, folder: Path, name: str = "gnb_00", **changes) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        (self.folder / "gnb.json").write_text(json.dumps(FILE | {"gnb": name} | changes))
        self.endpoints = [f"ipc://{self.folder}/{kind}" for kind in ("ue", "control")]
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "ranloom.federated.server"]
        command += ["--config", str(self.folder / "gnb.json")]
        command += ["--state", str(self.folder / "gnb.sqlite"), "--sync", "normal"]
        command += ["--ue", self.endpoints[0], "--control", self.endpoints[1]]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        assert self.process.stdout.readline().startswith("ue "), self.process.stderr.read()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self.process.stdout.close()
        self.process.stderr.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(10)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@pytest.fixture
def server(tmp_path, request):
    process = Process(tmp_path, **getattr(request, "param", {}))
    yield process
    if process.process.poll() is None:
        process.kill()


@pytest.fixture
def core(server):
    client = CoreClient(server.endpoints[1], timeout_s=0.3)
    yield client
    client.close()


def sent(ue: str, n_k: int, dtype: str = "fp32"):
    return encode(n_k * 1e-3 * values_of(ue, 0, LAYOUT.elements), dtype)


def exact_total(updates, elements=LAYOUT.elements):
    total = Accumulator(elements, "fixed64")
    for payload, n_k in updates:
        total.add(payload, float(n_k), peak_magnitude(payload))
    return total.total


@pytest.mark.parametrize("server", [{"chunk_bytes": 256}], indirect=True)
def test_killed_again_and_again_in_mid_round_no_update_is_lost_or_doubled(server, core):
    # 128 chunks an update: uploads outlast the kills
    ues = {f"ue{i}": 10 + i for i in range(5)}
    for ue in ues:
        core.attach(ue)
    core.begin_round(0, list(ues))
    answers = {}

    def upload(ue):
        client = UeClient(server.endpoints[0], timeout_s=0.3, give_up_s=60.0)
        for _ in range(2):  # the second time is a retransmission
            answers.setdefault(ue, []).append(
                client.send_update(f"job/0/{ue}", ue, 0, ues[ue], sent(ue, ues[ue]))["kind"]
            )
            time.sleep(0.05)
        client.close()

    threads = [threading.Thread(target=upload, args=(ue,)) for ue in ues]
    rng = np.random.default_rng(3)
    for thread in threads:
        thread.start()
    kills = 0
    while kills < 3 and any(t.is_alive() for t in threads):
        time.sleep(rng.uniform(0.02, 0.15))
        server.kill()
        kills += 1
        server.start()
    for thread in threads:
        thread.join(60)
    assert kills == 3
    # a count whose answer was lost in a kill shows as a duplicate; nothing is ever refused
    assert all(set(kinds) <= {"counted", "duplicate"} for kinds in answers.values())
    assert [len(kinds) for kinds in answers.values()] == [2] * 5
    status = core.status()
    assert status["account"]["delivered"] == status["account"]["offered"] == sum(ues.values())
    wave = core.next_wave()
    server.kill()
    server.start()
    again = core.next_wave()
    assert np.array_equal(wave.sums.total, again.sums.total)
    assert sorted(wave.manifest) == [f"job/0/{ue}" for ue in ues]
    assert wave.samples == sum(ues.values())
    assert np.array_equal(
        wave.sums.total, exact_total([(sent(ue, n_k), n_k) for ue, n_k in ues.items()])
    )
    core.ship_wave(wave)
    core.ship_wave(wave)
    assert core.next_wave() is None
    assert server.stop() == 0


def test_hand_over_between_two_processes(server, core, tmp_path):
    other = Process(tmp_path, "gnb_01")
    there = CoreClient(other.endpoints[1], timeout_s=0.3)
    try:
        core.attach("mover")
        core.begin_round(0, ["mover"])
        there.begin_round(0, [])
        payload = sent("mover", 7)
        client = UeClient(server.endpoints[0], timeout_s=5.0)
        about = client.describe()
        header = {
            "update_id": "job/0/mover",
            "ue": "mover",
            "round": 0,
            "n_k": 7,
            "dtype": "fp32",
            "exponent": 0,
            "layout_digest": about["layout_digest"],
        }
        header["payload_sha256"] = hashlib.sha256(payload.data).hexdigest()
        answer, _ = client.link.ask("offer", header=header)
        assert answer["missing"] == list(range(16))
        for index in range(5):
            chunk = bytes(payload.data)[index * 2048 : (index + 1) * 2048]
            client.link.ask("chunk", chunk, update_id="job/0/mover", index=index)
        client.close()
        context, chunks = core.detach("mover", keep_chunks=True)
        assert len(chunks) == 5 * 2048
        server.kill()
        server.start()
        there.attach("mover", context, chunks)
        other.kill()
        other.start()
        client = UeClient(other.endpoints[0], timeout_s=5.0)
        assert client.link.ask("offer", header=header)[0]["missing"] == list(range(5, 16))
        assert client.send_update("job/0/mover", "mover", 0, 7, payload)["kind"] == "counted"
        client.close()
        # back at the first gNB it is known to have counted
        core.attach("mover", *there.detach("mover", keep_chunks=True))
        client = UeClient(server.endpoints[0], timeout_s=5.0)
        assert client.send_update("job/0/mover", "mover", 0, 7, payload)["kind"] == "duplicate"
        client.close()
        assert there.next_wave().samples == 7
        assert core.next_wave() is None
    finally:
        there.close()
        other.kill()


def ue_process(endpoint, tensors, ue="ue0", *options):
    command = [sys.executable, "-m", "ranloom.federated.ue_process", endpoint, "--job", "job"]
    command += ["--ue", ue, "--round", "0", "--n-k", "9", "--dtype", "fp32"]
    command += ["--tensors", str(tensors), "--timeout-s", "5", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )


def test_a_ue_process_that_is_killed_goes_on_where_it_was(tmp_path):
    layout = TensorLayout.of([("lora_A", (64, 1024))])
    server = Process(
        tmp_path,
        tensors=[("lora_A", [64, 1024])],
        staging_bytes=2_000_000,
        chunk_bytes=1024,
    )
    core = CoreClient(server.endpoints[1], timeout_s=5.0)
    try:
        core.attach("ue0")
        core.begin_round(0, ["ue0"])
        flat = values_of("ue0", 0, layout.elements).astype(np.float32)
        tensors = tmp_path / "update.safetensors"
        save_file(layout.unflatten(flat), tensors)
        payload = encode(flat, "fp32")
        header = UpdateHeader(
            *("job/0/ue0", "ue0", 0, 9, "fp32", 0, layout.digest),
            hashlib.sha256(payload.data).hexdigest(),
        )
        asked = UeClient(server.endpoints[0], timeout_s=5.0)

        def missing():
            return len(asked.link.ask("offer", header=vars(header).copy())[0].get("missing", ()))

        first = ue_process(server.endpoints[0], tensors)
        while missing() == 256:
            time.sleep(0.005)
        first.kill()
        first.communicate()
        left = missing()
        asked.close()
        assert 0 < left < 256, "killed too late to tell"
        second = ue_process(server.endpoints[0], tensors)
        output, error = second.communicate(timeout=60)
        assert second.returncode == 0, error
        assert json.loads(output)["kind"] in ("counted", "duplicate")
        assert core.status()["account"]["delivered"] == 9
        wave = core.next_wave()
        assert np.array_equal(wave.sums.total, exact_total([(payload, 9)], layout.elements))
        stranger = ue_process(server.endpoints[0], tensors, "ue1")
        output, _ = stranger.communicate(timeout=60)
        assert (stranger.returncode, json.loads(output)["reason"]) == (1, "not_attached")
    finally:
        core.close()
        server.kill()


@pytest.mark.parametrize("content", [None, b"no tensors"])
def test_a_ue_process_without_an_update(tmp_path, content):
    path = tmp_path / "update.safetensors"
    if content:
        path.write_bytes(content)
    process = ue_process("ipc:///nowhere", path)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "update.safetensors" in error
    assert error.count("\n") == 1


def raw(endpoint: str, *frames: bytes, wait_s: float = 1.0):
    """One message on a socket of its own; its answer, or None."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    socket.send_multipart(frames)
    answer = json.loads(socket.recv_multipart()[0]) if socket.poll(int(wait_s * 1000)) else None
    context.destroy(linger=0)
    return answer


def test_malformed_and_oversized_messages_are_refused_and_harmless(server, core):
    core.attach("ue0")
    core.begin_round(0, ["ue0"])
    ue = server.endpoints[0]
    for frames in (
        (b"",),
        (b"\x80\x04\x95pickle",),
        (b"{" * 5000,),
        (b'{"version":1}',),
        (encode_message("begin_round", 3, round=1, expected=[]),),  # not on this socket
        (encode_message("chunk", 4, update_id="x", index=0), b"1", b"2"),
        (encode_message("describe", 5), b"extra"),
    ):
        answer = raw(ue, *frames)
        assert answer["kind"] == "malformed"
        assert answer["detail"]
    # a chunk that is too large for the job, but not for the socket
    answer = raw(ue, encode_message("chunk", 6, update_id="x", index=0), b"z" * 50_000)
    assert (answer["kind"], answer["reason"]) == ("refused", "not_offered")
    # beyond the socket's limit the connection is cut before the message is in memory
    huge = encode_message("chunk", 7, update_id="x", index=0)
    assert raw(ue, huge, b"z" * 5_000_000, wait_s=0.3) is None
    client = UeClient(ue, timeout_s=5.0)
    assert client.send_update("job/0/ue0", "ue0", 0, 3, sent("ue0", 3))["kind"] == "counted"
    answer = client.send_update("job/0/ue0", "ue0", 0, 4, sent("ue0", 3))
    assert answer["reason"] == "conflicting_content"
    answer = client.send_update("job/0/ue9", "ue9", 0, 4, sent("ue9", 4))
    assert answer["reason"] == "not_attached"
    client.close()
    status = core.status()
    assert status["malformed"] == 7
    assert status["account"]["delivered"] == 3
    with pytest.raises(InputError, match="round"):
        core.begin_round(5, [])


def test_a_server_that_is_not_there(tmp_path):
    client = UeClient(f"ipc://{tmp_path}/nobody", timeout_s=0.05, give_up_s=0.2)
    with pytest.raises(NoAnswerError, match="describe"):
        client.describe()
    client.close()


@pytest.mark.parametrize(
    ("changes", "options", "named"),
    [
        ({"late": "never"}, [], "late"),
        ({"chunk_bytes": 0}, [], "chunk_bytes"),
        ({"tensors": []}, [], "tensors"),
        ({"tensors": [["a", [2]], ["a", [2]]]}, [], "each tensor name once"),
        ({"more": 1}, [], "more"),
        ({}, ["--ue", "tcp://0.0.0.0:0"], "--ue"),
        ({}, ["--ue", "tcp://127.0.0.1:notaport"], "--ue"),
        ({}, ["--config", "/nowhere/gnb.json"], "gnb.json"),
    ],
)
def test_bad_configuration_gives_one_line_and_code_2(tmp_path, capsys, changes, options, named):
    path = tmp_path / "gnb.json"
    path.write_text(json.dumps(FILE | changes))
    arguments = ["--config", str(path), "--state", str(tmp_path / "gnb.sqlite"), *options]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_configuration_is_what_the_file_says(tmp_path):
    path = tmp_path / "gnb.json"
    path.write_text(json.dumps(FILE))
    config = asdict(replace(read_config(path), layout=LAYOUT))
    assert config["cut_off"] == FILE["cut_off"]
    assert {k: config[k] for k in FILE if k not in ("tensors", "cut_off")} == {
        k: v for k, v in FILE.items() if k not in ("tensors", "cut_off")
    }
