"""The real model, asked once for every prefix: sampling it tens of thousands of times becomes affordable."""

import torch

from dflash_core.target import TargetOutput
from dflash_core.tree import from_parents

CAPACITY = 16_384
"""Prefixes that may be remembered. Memory is only taken up as they come."""

NODES_A_FORWARD = 128
NODES_AN_ANSWER = 1024


class MemoTarget:
    """A `TargetModel` over another, for requests of one and the same prompt.

    Logits and taps after every continuation of the prompt are computed by the real model, many in one
    forward, the first time that somebody asks. Everything else (which nodes a verify asks for, what a commit
    keeps) happens as with any target.
    """

    def __init__(self, target, prompt, taps):
        self._target = target
        self._taps = tuple(taps)
        self._places = {}
        self._logits = torch.empty(CAPACITY, target.info.vocab_size)
        self._node_taps = torch.empty(CAPACITY, len(taps) * target.info.hidden_size)
        self._answer = torch.empty(NODES_AN_ANSWER, target.info.vocab_size)
        self.prompt = tuple(prompt)
        self.prompt_taps = target.start(taps).prefill(prompt).taps
        self._state = target.start(taps)
        self._state.prefill(prompt[:-1])

    @property
    def info(self):
        return self._target.info

    @property
    def size(self):
        """Prefixes known so far."""
        return len(self._places)

    def embed(self, tokens):
        return self._target.embed(tokens)

    def head(self, hidden):
        return self._target.head(hidden)

    def start(self, taps):
        assert tuple(taps) in ((), self._taps)
        return MemoState(self, bool(taps))

    def places(self, suffixes):
        """Where the outputs after these continuations (tuples of tokens) are; computed where they are new."""
        new = sorted({suffix for suffix in suffixes if suffix not in self._places}, key=breadth_first)
        for start in range(0, len(new), NODES_A_FORWARD):
            self._compute(new[start : start + NODES_A_FORWARD])
        return torch.tensor([self._places[suffix] for suffix in suffixes], dtype=torch.int64)

    def logits(self, places):
        """[..., V] of places [...], good until the next call: fresh memory would cost more than the copy."""
        answer = self._answer[: places.numel()]
        torch.index_select(self._logits, 0, places.flatten(), out=answer)
        return answer.view(*places.shape, -1)

    def node_taps(self, places):
        """[..., P * D] of places [...]."""
        return self._node_taps[places]

    def _compute(self, suffixes):
        """One forward over the trie of these continuations; its root is the last token of the prompt."""
        closure = {suffix[:length] for suffix in suffixes for length in range(len(suffix) + 1)}
        nodes = sorted(closure, key=breadth_first)
        index = {suffix: node for node, suffix in enumerate(nodes)}
        tokens = [self.prompt[-1], *(suffix[-1] for suffix in nodes[1:])]
        parents = [-1, *(index[suffix[:-1]] for suffix in nodes[1:])]
        tree = from_parents(
            torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([len(nodes)]), len(nodes[-1])
        )
        output = self._state.verify(tree)
        first, last = self.size, self.size + len(suffixes)
        assert last <= CAPACITY, f"more than {CAPACITY} prefixes; choose a prompt or settings with fewer"
        wanted = [index[suffix] for suffix in suffixes]
        self._logits[first:last] = output.logits[0, wanted]
        self._node_taps[first:last] = output.taps[0, wanted]
        self._places.update(zip(suffixes, range(first, last), strict=True))


def breadth_first(suffix):
    """Sorts a trie so that parents stand before children, and siblings side by side."""
    return len(suffix), suffix


class MemoState:
    """A `TargetState` that holds tokens instead of keys and values."""

    def __init__(self, memo, with_taps):
        self._memo = memo
        self._with_taps = with_taps
        self._rows = []
        self._nodes = None

    @property
    def lengths(self):
        return [len(self._memo.prompt) + len(row) for row in self._rows]

    def prefill(self, prompt):
        assert tuple(prompt) == self._memo.prompt
        self._rows.append(())
        logits = self._memo.logits(self._memo.places([()]))
        return TargetOutput(logits[None], self._memo.prompt_taps if self._with_taps else None)

    def verify(self, tree, recording="none"):
        self._nodes = tree.tokens.tolist()
        suffixes = [
            suffix
            for row, tokens, parents, count in zip(
                self._rows, self._nodes, tree.parents.tolist(), tree.num_nodes.tolist(), strict=True
            )
            for suffix in continuations(row, tokens, parents, count)
        ]
        places = self._memo.places(suffixes).view_as(tree.tokens)
        taps = self._memo.node_taps(places) if self._with_taps else None
        return TargetOutput(self._memo.logits(places), taps)

    def commit(self, plan):
        for row, count in enumerate(plan.keep):
            kept = range(count) if plan.gather is None else plan.gather[row, :count].tolist()
            self._rows[row] += tuple(self._nodes[row][node] for node in kept)

    def keep(self, rows):
        self._rows = [self._rows[row] for row in rows]


def continuations(row, tokens, parents, count):
    """Per node what has been committed and its path; padding stands for the root."""
    suffixes = []
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if node >= count:
            suffixes.append(suffixes[0])
        else:
            suffixes.append((*(suffixes[parent] if node else row), token))
    return suffixes
