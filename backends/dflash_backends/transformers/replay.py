"""Brings recurrent layers to the state after the accepted tokens, which cropping cannot do."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dflash_backends.transformers.cache import RaggedCache
from dflash_backends.transformers.recurrent import RecurrentRows, State
from dflash_core.errors import UnsupportedError
from dflash_core.target import Recording

Mixers = Mapping[int, nn.Module]
"""Layer index -> the module of that layer that carries the recurrent state."""


@contextmanager
def recorded(mixers: Mixers, cache: RaggedCache, recording: Recording) -> Iterator[None]:
    """Within it, forwards keep what `settle` needs: the layers' inputs, or their states after every node."""
    with ExitStack() as stack:
        for index, mixer in mixers.items() if recording != "none" else ():
            enter = _capturing if recording == "replay" else _stepping
            stack.enter_context(enter(mixer, cache.recurrent[index]))
        yield


def settle(mixers: Mixers, cache: RaggedCache, keep: Sequence[int], width: int, recording: Recording) -> None:
    """Commit the recurrent states after the first `keep[b]` of `width` nodes of each row b.

    Args:
        recording: of the forward that has just run.

    Raises:
        UnsupportedError: nothing was recorded, and not every node is kept.
    """
    if recording == "none" and any(count != width for count in keep):
        raise UnsupportedError(
            "A recurrent state cannot be cropped: nothing was recorded while verifying, and nodes were "
            'rejected. Use the rollback policy "replay" or "checkpoint".'
        )
    for index, mixer in mixers.items():
        layer = cache.recurrent[index]
        if recording == "checkpoint":
            layer.commit(_chosen(layer.steps, keep))
        else:
            layer.commit(_replayed(mixer, layer, cache, keep, width))


@contextmanager
def _capturing(mixer: nn.Module, layer: RecurrentRows) -> Iterator[None]:
    def capture(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        layer.inputs = args[0] if args else kwargs["hidden_states"]

    handle = mixer.register_forward_pre_hook(capture, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _stepping(mixer: nn.Module, layer: RecurrentRows) -> Iterator[None]:
    """Run the module one node after the other, and note its state after each."""
    whole = mixer.forward

    def step(hidden_states: Tensor, **kwargs: Any) -> Tensor:
        outputs = []
        for node in hidden_states.split(1, dim=1):
            outputs.append(whole(node, **kwargs))
            conv, state = layer.working
            layer.steps.append((conv.clone(), state))  # the next step writes into the former in place
        return torch.cat(outputs, 1)

    own = mixer.__dict__.get("forward")
    mixer.forward = step
    try:
        yield
    finally:
        if own is None:
            del mixer.forward
        else:
            mixer.forward = own


def _chosen(steps: Sequence[State], keep: Sequence[int]) -> State:
    """Row b's state after its node `keep[b]`."""
    device = steps[0][0].device
    step, row = torch.tensor(keep, device=device) - 1, torch.arange(len(keep), device=device)
    conv, state = (torch.stack(states)[step, row] for states in zip(*steps, strict=True))
    return conv, state


def _replayed(
    mixer: nn.Module, layer: RecurrentRows, cache: RaggedCache, keep: Sequence[int], width: int
) -> State:
    """Rows that kept less than everything start again from their committed state, those alike together."""
    conv, state = layer.working
    if all(count == width for count in keep):
        return conv, state
    conv, state = conv.clone(), state.clone()
    if layer.inputs is None:
        raise RuntimeError("The recurrent layer recorded no inputs to replay.")
    for count in sorted(set(keep) - {width}):
        rows = torch.tensor([row for row, own in enumerate(keep) if own == count], device=conv.device)
        layer.load(layer.committed, rows)
        mixer(layer.inputs[rows, :count], cache=cache)
        conv[rows], state[rows] = layer.working
    return conv, state
