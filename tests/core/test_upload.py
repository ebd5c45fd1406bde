"""Host values reach the device as they are; on a CPU they are the same memory."""

import numpy as np
import pytest
import torch

from dflash_core.upload import upload


@pytest.mark.parametrize("values", [np.arange(6).reshape(2, 3), torch.tensor([1.5, 2.5]), np.zeros(0)])
def test_values_keep_their_shape_and_dtype(values):
    there = upload(values, "cpu")
    assert there.shape == tuple(values.shape)
    assert torch.equal(there, torch.as_tensor(values))


def test_on_a_cpu_it_is_the_same_memory():
    host = np.arange(4)
    there = upload(host, torch.device("cpu"))
    host[2] = 9
    assert there.tolist() == [0, 1, 9, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_nobody_waits():
    there = upload(np.arange(4), "cuda")
    assert there.is_cuda
    assert there.tolist() == [0, 1, 2, 3]
