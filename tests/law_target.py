"""A target whose next token depends on the last one alone, by a law that is known."""

import torch

from dflash_core.target import TargetInfo, TargetOutput


class LawTarget:
    """`law[token]` are the probabilities [V] of what comes next; a tap says which token it stands on."""

    def __init__(self, law, hidden_size, name="law"):
        generator = torch.Generator().manual_seed(3)
        self.log_law = law.log()
        self.table = torch.randn(len(law), hidden_size, generator=generator)
        self.forwards = 0
        self.info = TargetInfo(
            name=name,
            num_layers=8,
            hidden_size=hidden_size,
            vocab_size=law.shape[-1],
            max_positions=2048,
            rope=None,
            recurrent=False,
            trees=True,
            eos_token_ids=(),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )

    def start(self, taps):
        return LawState(self, taps)


class LawState:
    """One row; it insists on every verified token being committed before the next are verified."""

    def __init__(self, target, taps):
        self._target, self._taps = target, taps
        self._verified = 0
        self._length = 0

    @property
    def lengths(self):
        return [self._length]

    def prefill(self, prompt):
        assert prompt
        assert not self._length
        self._length = len(prompt)
        return self._forward(torch.tensor([prompt]), last_only=True)

    def verify(self, tree, recording="none"):
        assert tree.is_chain
        assert self._length
        assert not self._verified
        self._verified = tree.width
        return self._forward(tree.tokens)

    def commit(self, plan):
        assert plan.keep == [self._verified]
        self._length += self._verified
        self._verified = 0

    def _forward(self, tokens, last_only=False):
        self._target.forwards += 1
        logits = self._target.log_law[tokens] + 2.5  # what all have in common changes nothing
        taps = torch.cat([self._target.table[tokens]] * len(self._taps), -1) if self._taps else None
        return TargetOutput(logits[:, -1:] if last_only else logits, taps)
