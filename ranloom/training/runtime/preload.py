"""What the server process imports once, so that the processes forked from it start at once."""

import torch.fx.experimental.symbolic_shapes  # torch.autograd.grad imports it at its first call

import ranloom.training.runtime.live

__all__ = ["ranloom", "torch"]
