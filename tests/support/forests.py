"""Random rollout trees that a tiny model can read, with everything that makes a tree awkward; no hypothesis."""

from dataclasses import replace

import numpy as np
import torch

from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

VOCAB = 29


class _Grower:
    """Grows one tree depth-first: roots, calls with results, window cuts, branches of uneven width."""

    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)
        self.segments = [self.plain(Source.PROMPT, -1, int(self.draw.integers(1, 6)))]

    def plain(self, source, parent, size):
        event = ToolEvent("search", "{}", "ok") if source is Source.TOOL else None
        return Segment(self.draw.integers(0, VOCAB, size).astype(np.int32), source, parent, event=event)

    def add(self, segment):
        self.segments.append(segment)
        return len(self.segments) - 1

    def policy(self, parent, finish, size):
        tokens = self.draw.integers(0, VOCAB, size).astype(np.int32)
        logp = self.draw.normal(-3.3, 0.8, size).astype(np.float32)
        entropy = self.draw.uniform(0.5, 3.0, size).astype(np.float32)
        return self.add(Segment(tokens, Source.POLICY, parent, logp, entropy, finish, 0))

    def size(self):
        return int(self.draw.choice([1, 1, 2, 3, 6]))

    def turn(self, parent, levels):
        """One policy segment and all that follows it, up to `levels` more branching levels."""
        kind = self.draw.random()
        if levels == 0 or kind < 0.15:
            failed = self.draw.random() < 0.15
            ends = Finish.STOP if self.draw.random() < 0.7 else Finish.LENGTH
            self.policy(parent, Finish.ERROR if failed else ends, 0 if failed else self.size())
            return
        if kind < 0.5:
            node = self.policy(parent, Finish.WINDOW, self.size())
        else:
            node = self.policy(parent, Finish.CALL, self.size())
            source = Source.TOOL if self.draw.random() < 0.8 else Source.NOTICE
            node = self.add(self.plain(source, node, int(self.draw.choice([0, 1, 4]))))
        for _ in range(int(self.draw.choice([1, 2, 2, 3]))):
            self.turn(node, levels - 1)


def random_tree(seed, levels=4, roots=2):
    """A valid scored tree; a failed leaf has no reward, nor have a few others. Log-probs as of no model."""
    grower = _Grower(seed)
    for root in range(roots):
        grower.turn(0, levels if root < 2 else 0)  # what comes after the first two tops the group up
    segments = tuple(grower.segments)
    parents = {s.parent for s in segments}
    leaves = [n for n in range(len(segments)) if n not in parents]
    rewards = [
        None
        if segments[leaf].finish is Finish.ERROR or grower.draw.random() < 0.1
        else grower.draw.choice([-1, 0, 1.1])
        for leaf in leaves
    ]
    outcomes = tuple(Outcome(None if r is None else float(r)) for r in rewards)
    return RolloutTree(f"forest-{seed}", segments, tuple(leaves), outcomes=outcomes).validate()


def logits_of(model, tokens):
    """`[T, V]` of one sequence, by the model as it is."""
    return model(input_ids=torch.from_numpy(np.asarray(tokens, np.int64)[None]), use_cache=False).logits[0]


@torch.no_grad()
def sampled_by(tree, model, noise=0.0, seed=0, temperature=1.0):
    """The tree with the model's own log-probs, moved by normal noise of that deviation: off-policy."""
    draw = np.random.default_rng(seed)
    found = {}
    for path in tree.paths():
        logp = (logits_of(model, path.token_T) / temperature).log_softmax(-1)
        own = logp[:-1].gather(1, torch.from_numpy(path.token_T[1:].astype(np.int64))[:, None])[:, 0].double().numpy()
        for node in path.nodes:
            found[node] = own[np.flatnonzero(path.node_T == node) - 1]
    segments = [
        replace(s, logprobs=(found[n] + noise * draw.normal(size=len(s))).astype(np.float32)) if s.is_policy else s
        for n, s in enumerate(tree.segments)
    ]
    return replace(tree, segments=tuple(segments))


def comparable(metrics):
    """An update's metrics without those that say how it was computed."""
    return {k: v for k, v in metrics.items() if k not in ("passes", "sharing", "computed_tokens")}
