"""Our drafter computes what z-lab's own package computes, cycle after cycle."""

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

pytest.importorskip("dflash", reason="the yardstick, dflash==0.1.0, is not installed")

from dflash.model import DFlash2DraftModel, _crop_to, _make_cache
from drafter_target import StubTarget, plan
from parity_zlab import load_dflash, write_draft

from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.zlab import DIALECT
from dflash_core.drafter.block import BlockDrafter
from dflash_core.sampling import SamplingParams, sampling_batch

CONFIGS = [(seed, second) for second in (False, True) for seed in range(15)]
CYCLES = 3


@dataclass
class Yardstick:
    """One request in z-lab's package: its own cache, and the taps that its next draft is given."""

    model: torch.nn.Module
    taps: Tensor
    start: int
    cache: object = field(init=False)

    def __post_init__(self) -> None:
        self.cache = _make_cache(self.model.config)

    def draft(self, target: StubTarget, anchor: int, block_size: int) -> Tensor:
        """Hidden states [block_size, D] of a block."""
        tokens = torch.full((1, block_size), self.model.mask_token_id)
        tokens[0, 0] = anchor
        scale = self.model.config.dflash_config.get("input_embedding_scale", 1.0)
        hidden = self.model(
            target_hidden=self.taps[None],
            noise_embedding=target.embed(tokens) * scale,
            position_ids=torch.arange(self.start - len(self.taps), self.start + block_size)[None],
            past_key_values=self.cache,
            use_cache=True,
        )
        _crop_to(self.cache, self.start)
        return hidden[0]

    def propose(self, target: StubTarget, hidden: Tensor, anchor: int) -> Tensor:
        """Greedily drafted tokens [block_size - 1]."""
        drafted = hidden[None, 1:]
        if isinstance(self.model, DFlash2DraftModel):
            return self.model.propose(drafted, torch.tensor([anchor]), target.head, 0.0)[0][0]
        return self.model.compute_logits(drafted, target.head).argmax(-1)[0]

    def commit(self, taps: Tensor) -> None:
        self.taps = taps
        self.start += len(taps)


@pytest.mark.parametrize(("seed", "second"), CONFIGS)
@torch.inference_mode()
def test_hidden_states_and_greedy_drafts_equal_zlabs(tmp_path, seed, second):
    """Three ragged requests in one batch of ours, against one at a time of theirs."""
    rng = random.Random(seed)
    folder = write_draft(tmp_path, seed, second=second)
    model, checkpoint = load_dflash(folder), load_checkpoint(folder, {"zlab": DIALECT})
    spec = checkpoint.spec
    target = StubTarget(spec, seed)
    drafter = BlockDrafter(checkpoint, target)
    context = drafter.start()
    yardsticks = []
    for _ in range(3):
        prompt = torch.randn(rng.randint(1, 40), spec.tap_width)
        drafter.join(context, [0] * len(prompt), prompt)
        yardsticks.append(Yardstick(model, prompt, len(prompt)))
    for _ in range(CYCLES):
        anchors = torch.randint(0, spec.vocab_size, (3,))
        blocks = [rng.randint(2, spec.block_size) for _ in range(3)]
        theirs = [
            stick.draft(target, int(anchor), block)
            for stick, anchor, block in zip(yardsticks, anchors, blocks, strict=True)
        ]
        read = context.read(None)
        tokens = torch.full((3, max(blocks)), spec.mask_token_id)
        tokens[:, 0] = anchors
        positions = read.anchors[:, None] + torch.arange(max(blocks))
        ours = drafter.network(target.embed(tokens), positions, read.zones, torch.tensor(blocks))
        sampling = sampling_batch([SamplingParams()] * 3, context.lengths)
        proposal = drafter.propose(anchors, context, plan(blocks), sampling)
        for row, block in enumerate(blocks):
            torch.testing.assert_close(ours[row, :block], theirs[row], atol=1e-5, rtol=0)
            drafts = yardsticks[row].propose(target, theirs[row], int(anchors[row]))
            assert proposal.tree.tokens[row, 1:block].tolist() == drafts.tolist()
        taps = torch.randn(3, max(blocks), spec.tap_width)
        nodes = [list(range(rng.randint(1, block))) for block in blocks]
        drafter.commit(context, [[0] * len(n) for n in nodes], taps, nodes)
        for row, kept in enumerate(nodes):
            yardsticks[row].commit(taps[row, kept])


def test_the_configurations_cover_what_they_should(tmp_path):
    specs = [
        load_checkpoint(
            write_draft(tmp_path / f"{seed}{second}", seed, second=second), {"zlab": DIALECT}
        ).spec
        for seed, second in CONFIGS
    ]
    assert {len(spec.taps) for spec in specs} == {1, 2, 3, 4, 5, 6}
    assert {spec.block_size for spec in specs} >= set(range(2, 17))
    assert len({spec.num_heads // spec.num_kv_heads for spec in specs}) == 4
    kinds = {(layer.window is not None, layer.causal) for spec in specs for layer in spec.layers}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    assert any(len({layer.window for layer in spec.layers}) == 2 for spec in specs)
    assert {spec.rope.kind for spec in specs} == {"default", "linear", "yarn"}
    for feature in ("attention_bias", "final_logit_softcapping"):
        assert len({getattr(spec, feature) for spec in specs}) > 1
    for scale in ("input_embedding_scale", "output_multiplier"):
        assert len({getattr(spec, scale) for spec in specs}) > 1
