"""What this process has of the current GPU, whoever else is on it: blocks of the driver's pool, where Pith's rows and
scratch memory are, and torch's."""

import ctypes
import gc

import torch

RESERVED, USED = 5, 7  # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, _USED_MEM_CURRENT


def _asked(status, what):
    if status:
        raise RuntimeError(f"the driver's {what} failed with {status}")


def _of_pool(attribute):
    """After all work is done and unused blocks are given back."""
    gc.collect()
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    device, pool, held = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _asked(driver.cuDeviceGet(ctypes.byref(device), torch.cuda.current_device()), "cuDeviceGet")
    _asked(driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device), "cuDeviceGetDefaultMemPool")
    _asked(driver.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)), "cuMemPoolTrimTo")
    _asked(driver.cuMemPoolGetAttribute(pool, attribute, ctypes.byref(held)), "cuMemPoolGetAttribute")
    return held.value


def pool_bytes():
    """Of the driver's pool: whole blocks of 32 MB, in which rows leave gaps."""
    return _of_pool(RESERVED)


def used_bytes():
    """What lies in those blocks."""
    return _of_pool(USED)


def process_bytes():
    """The same and torch's blocks that tensors are in."""
    held = pool_bytes()
    torch.cuda.empty_cache()
    return held + torch.cuda.memory_reserved()
