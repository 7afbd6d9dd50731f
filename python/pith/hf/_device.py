"""Where a model computes, and what of Pith computes with it there: on the CPU, or on one NVIDIA GPU in the order of
torch's current stream."""

import torch

from .. import _pith
from ._support import device_problem, refuse


def device_of(given):
    """As torch.device, with the index of a GPU; refused where Pith cannot compute."""
    device = torch.device(given)
    problem = device_problem(device.type)
    if problem:
        refuse(f"the device {str(given)!r}: {problem}")
    if device.type == "cuda" and not torch.cuda.is_available():
        refuse(f"the device {str(given)!r}: torch finds no GPU; check nvidia-smi, or leave device out")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def weights_on(model):
    """The device of a model that check() found no problem with."""
    return device_of(next(model.parameters()).device)


def make_runtime(device, threads, memory_limit):
    threads = torch.get_num_threads() if threads is None else threads
    if device.type == "cpu":
        return _pith.Runtime(threads=threads, memory_limit=memory_limit)
    with torch.cuda.device(device):
        return _pith.Runtime(device="cuda", threads=threads, memory_limit=memory_limit, make_room=_free_blocks)


def _free_blocks():
    """torch keeps blocks that no tensor uses; caches live beside them, in the driver's pool."""
    torch.cuda.empty_cache()
    return True
