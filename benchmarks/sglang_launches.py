"""What a cycle would launch on a GPU, and where it may wait: ours beside SGLang's own DFLASH.

In the engine's environment (`$(ci/engine sglang)/bin/python`), from the repository's root:

    TRITON_INTERPRET=1 python benchmarks/sglang_launches.py --batch 2

Counted on the CPU platform, in the scheduler's process, in decode steps, without the target's own forward.
One launch is a torch operation that is no view, a Triton kernel (SGLang's run in Triton's interpreter here),
one of SGLang's operations that have a kernel of their own on a GPU (norms, activations, rotary angles), an
attention with the write of its keys, one of our operations that have a Triton implementation, or a copy of
host values to the device. It is an estimate: torch operations on small host tensors count too, and a branch
that only a GPU takes is not seen. Calls that bring a tensor to the host, and copies to the device that are
not told otherwise, wait for all that was launched before; they are listed by place, since only a reader can
tell which of the tensors would lie on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

REPORT = "SGLANG_LAUNCHES_REPORT"
WORKERS = {
    "DFLASH": "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2",
    "DFLASH_CORE": "dflash_backends.sglang.worker.DFlashCoreWorker",
}
FREE = ("empty", "detach", "lift_fresh", "alias", "set_", "resize_", "is_", "sym_", "_unsafe_view")
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "repeat_interleave")
OURS = ("site-packages/sglang/", "/dflash_core/", "/dflash_backends/", "/dflash_kernels/")
SHOWN = 25


class Count(TorchDispatchMode):
    """Counts of the decode steps so far; `paused` while something counts as one, or as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.launches: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.active = self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not self.paused:
            by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
            if by_mask or name.startswith(WAITS):
                self.wait(name)
            if not (func.is_view or name.startswith(FREE)):
                self.launches[f"torch {name}"] += 1
                self.places[place()] += 1
        return func(*args, **(kwargs or {}))

    def wait(self, what: str) -> None:
        """Note a call that may wait, by the line that makes it."""
        self.waits[f"{what}  {place()}"] += 1

    @contextmanager
    def one(self, name: str | None, launches: int = 1) -> Iterator[None]:
        """Whatever happens inside is so many launches; of nothing when there is no name."""
        if not self.active or self.paused:
            yield
            return
        if name is not None:
            self.launches[name] += launches
            self.places[place()] += launches
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


def place() -> str:
    """The innermost line of SGLang's or ours that is being run, this file's aside."""
    for frame in reversed(traceback.extract_stack(limit=16)):
        if any(part in frame.filename for part in OURS) and frame.filename != __file__:
            return f"{Path(frame.filename).name}:{frame.lineno} {frame.line}"
    return "?"


COUNT = Count()


def around_step(original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Count one decode step; a prompt is run as it is."""
    if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
        return original(worker, batch, *args, **kwargs)
    COUNT.active = True
    with COUNT:
        result = original(worker, batch, *args, **kwargs)
    COUNT.active = False
    COUNT.steps += 1
    kinds = ("launches", "places", "waits")
    report = {"steps": COUNT.steps, **{kind: getattr(COUNT, kind) for kind in kinds}}
    Path(os.environ[REPORT]).write_text(json.dumps(report))
    return result


def around_target(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The target's forward is the same for both, and what a CPU's attention prepares is no GPU's."""
    with COUNT.one(None):
        return original(*args, **kwargs)


def counted(name: str, launches: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, counting as so many launches of that name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with COUNT.one(name, launches):
            return function(*args, **kwargs)

    return call


def register() -> None:
    """The plugin that SGLang's processes load: puts the counters in place."""
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for worker in WORKERS.values():
        HookRegistry.register(f"{worker}.forward_batch_generation", around_step, HookType.AROUND)
    backend = "dflash_backends.sglang.cpu.attention.TorchAttention.init_forward_metadata"
    for target in ("sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation", backend):
        HookRegistry.register(target, around_target, HookType.AROUND)
    for kind, name, launches in ((BaseFusedOp, "fused", 1), (RadixAttention, "attention", 2)):
        kind.__call__ = counted(f"{name} operation", launches, torch.nn.Module.__call__)
    count_ours()
    count_triton()
    count_copies()
    count_reads()


def count_ours() -> None:
    """One of our operations with a Triton implementation is one launch; others do what they do on a GPU."""
    import dflash_core.decoder  # noqa: F401 - brings all operations in
    from dflash_kernels import dispatch

    real = dispatch.choose

    def choose(op: str, impl: Any, probe: Any, available: Any) -> Any:
        found = available.get("device") if impl == "auto" else None
        found = found or real(op, impl, probe, available)
        return counted(f"our {op}", 1, found) if "triton" in available else found

    for name, module in [*sys.modules.items()]:
        if name.startswith("dflash_kernels") and getattr(module, "choose", None) is real:
            module.choose = choose  # type: ignore[attr-defined]


def count_triton() -> None:
    """A kernel of SGLang's that Triton interprets is one launch."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
        with COUNT.one(f"triton {executor.fn.__name__}"):
            return run(executor, *args, **kwargs)

    GridExecutor.__call__ = call


def count_copies() -> None:
    """Copies to the device, which on a CPU are none."""
    import dflash_core.upload

    ours, move, make = dflash_core.upload.upload, torch.Tensor.to, torch.tensor

    def upload(*args: Any) -> Any:
        with COUNT.one("copy to the device"):
            return ours(*args)

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args[:1], kwargs.get("device")]
        if COUNT.paused or not any(isinstance(one, str | torch.device) for one in given):
            return move(tensor, *args, **kwargs)
        if COUNT.active and not (kwargs.get("non_blocking") or True in args):
            COUNT.wait("to")
        with COUNT.one("copy to the device"):
            return move(tensor, *args, **kwargs)

    def tensor(*args: Any, **kwargs: Any) -> Any:
        if COUNT.paused or kwargs.get("device") is None:
            return make(*args, **kwargs)
        if COUNT.active:
            COUNT.wait("tensor")
        with COUNT.one("copy to the device"):
            return make(*args, **kwargs)

    torch.Tensor.to, torch.tensor = to, tensor  # type: ignore[method-assign]
    for name, module in [*sys.modules.items()]:
        if name.startswith("dflash_") and getattr(module, "upload", None) is ours:
            module.upload = upload  # type: ignore[attr-defined]


def count_reads() -> None:
    """Reads that torch's dispatcher does not see."""
    for name in ("tolist", "cpu", "numpy"):
        real = getattr(torch.Tensor, name)

        def read(tensor: Any, *args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
            if COUNT.active and not COUNT.paused:
                COUNT.wait(name)
            return real(tensor, *args, **kwargs)

        setattr(torch.Tensor, name, read)


def run(algorithm: str, model: str, draft: str, batch: int, tokens: int) -> dict[str, Any]:
    """Generate with one algorithm; what its steps launched."""
    import sglang

    engine = sglang.Engine(
        model_path=model,
        device="cpu",
        dtype="float32",
        max_total_tokens=4096,
        context_length=2048,
        max_running_requests=batch,
        skip_server_warmup=True,
        log_level="error",
        speculative_algorithm=algorithm,
        speculative_draft_model_path=draft,
    )
    prompts = [[2, *range(100 + row, 116 + row)] for row in range(batch)]
    engine.generate(
        input_ids=prompts, sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    )
    engine.shutdown()
    found: dict[str, Any] = json.loads(Path(os.environ[REPORT]).read_text())
    return found


@contextmanager
def plugged() -> Iterator[None]:
    """This file as an installed plugin of SGLang's, for as long as it takes."""
    with tempfile.TemporaryDirectory() as place:
        info = Path(place, "sglang_launches-1.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-launches\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nlaunches = sglang_launches:register\n")
        path = [place, str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        sys.path[:0] = path[:2]
        os.environ[REPORT] = str(Path(place, "report.json"))
        os.environ["SGLANG_PLATFORM"] = "dflash_cpu"
        os.environ["CC"] = "false"  # without what is compiled for a CPU
        yield


def show(algorithm: str, found: dict[str, Any], by_place: bool) -> None:
    """One algorithm's table."""
    steps = found["steps"]
    print(f"\n{algorithm}: {sum(found['launches'].values()) / steps:.1f} launches a cycle, {steps} cycles")
    for name, count in Counter(found["launches"]).most_common(SHOWN):
        print(f"  {count / steps:7.1f}  {name}")
    if by_place:
        print("  by place:")
        for name, count in Counter(found["places"]).most_common():
            print(f"  {count / steps:7.1f}  {name}")
    print("  calls that wait for the device, where the tensor is on a GPU:")
    for name, count in Counter(found["waits"]).most_common(SHOWN):
        print(f"  {count / steps:7.2f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash-core"
    draft = Path(__file__).parents[1] / "drafts/SmolLM2-135M-Instruct-DFlash-b8-borrowed"
    parser.add_argument("--model", default=str(cache / "models/SmolLM2-135M-Instruct"))
    parser.add_argument("--draft", default=str(draft))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--only", choices=WORKERS, help="one of the two")
    parser.add_argument("--places", action="store_true", help="also list launches by line")
    parser.add_argument("--json", type=Path, help="also write all counts here")
    given = parser.parse_args()
    with plugged():
        found = {name: run(name, given.model, given.draft, given.batch, given.new_tokens) for name in WORKERS}
    for name, counts in found.items():
        show(name, counts, given.places)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
