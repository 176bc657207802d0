"""Device and host memory as one pool, in which the RAN comes first (WEAVER App. E).

The RAN owns a pinned part of the device. Training tensors live in what is left, or on the
host. When the RAN asks for more, training tensors are demoted to the host at once, the one
unused for longest first; they come back only when they are asked for and fit.
:class:`PoolState` decides and accounts, :class:`TensorPool` moves the tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch

from ranloom.errors import InputError

Tier = Literal["device", "host"]


@dataclass(frozen=True)
class Move:
    """A tensor to copy from one tier to the other, and then to drop where it was."""

    name: str
    to: Tier


class PoolState:
    """Accounting of both tiers; a refused request changes nothing.

    Args:
        device_bytes: capacity of the device tier, the RAN's part included.
        host_bytes: capacity of the host tier.
        ran_bytes: part of the device that the RAN holds at first.

    Raises:
        InputError: the RAN's part exceeds the device.
    """

    def __init__(self, device_bytes: int, host_bytes: int, ran_bytes: int) -> None:
        if not 0 <= ran_bytes <= device_bytes:
            raise InputError("memory pool: RAN bytes", ran_bytes, f"allowed: 0 to {device_bytes}")
        self.device_bytes = device_bytes
        self.host_bytes = host_bytes
        self.ran_bytes = ran_bytes
        # Least recently used first.
        self._on: dict[Tier, OrderedDict[str, int]] = {
            "device": OrderedDict(),
            "host": OrderedDict(),
        }

    def used_bytes(self, tier: Tier) -> int:
        """Bytes of training tensors on a tier."""
        return sum(self._on[tier].values())

    @property
    def free_device_bytes(self) -> int:
        """Device bytes that neither the RAN nor training holds."""
        return self.device_bytes - self.ran_bytes - self.used_bytes("device")

    def tier(self, name: str) -> Tier:
        """Where a tensor is.

        Raises:
            InputError: no such tensor.
        """
        for tier, held in self._on.items():
            if name in held:
                return tier
        raise InputError("memory pool: tensor", name, "allowed: a tensor of the pool")

    def reserve_ran(self, ran_bytes: int) -> list[Move]:
        """Give the RAN so much of the device; the moves that make room come first in time.

        Raises:
            InputError: more than the device has, or the host cannot take what has to leave.
        """
        where = "memory pool: RAN bytes"
        if not 0 <= ran_bytes <= self.device_bytes:
            raise InputError(where, ran_bytes, f"allowed: 0 to {self.device_bytes}")
        moves = self._demote(ran_bytes + self.used_bytes("device") - self.device_bytes, where)
        self.ran_bytes = ran_bytes
        return moves

    def add(self, name: str, size_bytes: int) -> Tier:
        """Take in a tensor, on the device if it fits there beside the others, else on the host.

        Raises:
            InputError: the name is taken, the size negative, or neither tier has room.
        """
        if any(name in held for held in self._on.values()):
            raise InputError("memory pool: tensor", name, "allowed: a new name")
        if size_bytes < 0:
            raise InputError(f"memory pool: {name}", size_bytes, "allowed: 0 bytes or more")
        tier: Tier = "device" if size_bytes <= self.free_device_bytes else "host"
        room = self.host_bytes - self.used_bytes("host")
        if tier == "host" and size_bytes > room:
            raise InputError(f"memory pool: {name}", size_bytes, f"room: {room} bytes on the host")
        self._on[tier][name] = size_bytes
        return tier

    def remove(self, name: str) -> None:
        """Forget a tensor.

        Raises:
            InputError: no such tensor.
        """
        del self._on[self.tier(name)][name]

    def use(self, name: str) -> list[Move]:
        """Mark a tensor as used now, and promote it if it fits without demoting another.

        Raises:
            InputError: no such tensor.
        """
        tier = self.tier(name)
        size_bytes = self._on[tier][name]
        if tier == "device" or size_bytes > self.free_device_bytes:
            self._on[tier].move_to_end(name)
            return []
        self._on["device"][name] = self._on["host"].pop(name)
        return [Move(name, "device")]

    def _demote(self, wanted_bytes: int, where: str) -> list[Move]:
        leaving, freed = [], 0
        for name, size_bytes in self._on["device"].items():
            if freed >= wanted_bytes:
                break
            if size_bytes:
                leaving.append(name)
                freed += size_bytes
        room = self.host_bytes - self.used_bytes("host")
        if freed > room:
            raise InputError(where, freed, f"room for what must leave: {room} bytes on the host")
        for name in leaving:
            self._on["host"][name] = self._on["device"].pop(name)
        return [Move(name, "host") for name in leaving]


class TensorPool:
    """Tensors kept where :class:`PoolState` says.

    Args:
        state: accounting; only this pool may change it from here on.
        device: device of the upper tier; the lower one is the host.
    """

    def __init__(self, state: PoolState, device: torch.device) -> None:
        self.state = state
        self._device: dict[Tier, torch.device] = {"device": device, "host": torch.device("cpu")}
        self._tensors: dict[str, torch.Tensor] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a tensor in; errors as in :meth:`PoolState.add`."""
        tier = self.state.add(name, tensor.numel() * tensor.element_size())
        # A copy of its own: a view would keep storage alive that nobody counts.
        self._tensors[name] = tensor.to(self._device[tier]).clone()

    def get(self, name: str) -> torch.Tensor:
        """A tensor, on the device if there is room; errors as in :meth:`PoolState.use`."""
        self._carry_out(self.state.use(name))
        return self._tensors[name]

    def remove(self, name: str) -> torch.Tensor:
        """Take a tensor out; errors as in :meth:`PoolState.remove`."""
        self.state.remove(name)
        return self._tensors.pop(name)

    def reserve_ran(self, ran_bytes: int) -> None:
        """Give the RAN so much of the device; errors as in :meth:`PoolState.reserve_ran`."""
        self._carry_out(self.state.reserve_ran(ran_bytes))

    def _carry_out(self, moves: list[Move]) -> None:
        for move in moves:
            held = self._tensors[move.name]
            self._tensors[move.name] = held.to(self._device[move.to])
