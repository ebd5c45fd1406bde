"""Writing to the pool touches the named slots only."""

import torch

from dflash_kernels.write_context import write_context


def test_named_slots_are_written_in_the_pools_dtype_and_no_other():
    pools = [torch.full((3, 11, 2, 5), float("nan"), dtype=torch.bfloat16) for _ in range(2)]
    new = torch.randn(2, 3, 4, 2, 5)
    slots = torch.tensor([7, 0, 10, 3])
    write_context(*pools, slots, *new)
    for pool, values in zip(pools, new, strict=True):
        assert torch.equal(pool[:, slots], values.bfloat16())
        others = [slot for slot in range(11) if slot not in slots.tolist()]
        assert pool[:, others].isnan().all()
