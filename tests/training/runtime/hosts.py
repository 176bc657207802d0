"""Two hosts for a test: network namespaces joined by a bad link, or two loopback addresses.

The link is a pair of TUN devices with a relay between them, which delays and loses packets: that
needs no netem in the kernel. It takes root, ``ip`` and ``/dev/net/tun``.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MTU_BYTES = 2048


@dataclass(frozen=True)
class Host:
    """Where a process runs: what its command begins with, and its address."""

    prefix: tuple[str, ...]
    address: str


class BadLink:
    """Carries packets between two TUN devices, late, and not all of them.

    Args:
        ends: file descriptors of the devices.
        delay_s: one way.
        loss: share of the packets that are lost.
    """

    def __init__(self, ends: tuple[int, int], delay_s: float, loss: float) -> None:
        self.carried = self.lost = 0
        self._ends = ends
        self._delay_s, self._loss = delay_s, loss
        self._cut_until_s = 0.0
        self._open = True
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def cut(self, seconds: float) -> None:
        """Nothing passes for that long."""
        self._cut_until_s = time.monotonic() + seconds

    def close(self) -> None:
        """Stop carrying."""
        self._open = False
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        chance = random.Random(1)
        under_way: list[tuple[float, int, int, bytes]] = []
        while self._open:
            now_s = time.monotonic()
            wait_s = under_way[0][0] - now_s if under_way else 0.05
            for end in select.select(self._ends, (), (), max(0.0, min(wait_s, 0.05)))[0]:
                packet = os.read(end, _MTU_BYTES)
                to = self._ends[end == self._ends[0]]
                if time.monotonic() < self._cut_until_s or chance.random() < self._loss:
                    self.lost += 1
                    continue
                self.carried += 1
                due_s = time.monotonic() + self._delay_s
                heapq.heappush(under_way, (due_s, self.carried, to, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(under_way)
                os.write(to, packet)


@contextmanager
def two_hosts(delay_s: float, loss: float) -> Iterator[tuple[Host, Host, BadLink | None]]:
    """Two hosts and the link between them; no link where they are loopback addresses."""
    if os.geteuid() != 0 or shutil.which("ip") is None or not os.path.exists("/dev/net/tun"):
        yield Host((), "127.0.0.2"), Host((), "127.0.0.3"), None
        return
    names = [f"ranloom{os.getpid()}{side}" for side in "ab"]
    hosts, ends = [], []
    try:
        for number, name in enumerate(names, start=1):
            device, address = f"rl{os.getpid() % 100_000}{name[-1]}", f"10.213.77.{number}"
            ends.append(_open_tun(device))
            _ip("netns", "add", name)
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "address", "add", f"{address}/30", "dev", device)
            for up in ("lo", device):
                _ip("-n", name, "link", "set", up, "up")
            hosts.append(Host(("ip", "netns", "exec", name), address))
        link = BadLink((ends[0], ends[1]), delay_s, loss)
        try:
            yield hosts[0], hosts[1], link
        finally:
            link.close()
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _open_tun(device: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR)
    flags = _IFF_TUN | _IFF_NO_PI
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
    return end


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
