"""The plan's counts against what the library computes: exactly, on trees of the real rollout."""

import asyncio

import numpy as np
import pytest

from arpo.bench.executed import recorded
from arpo.bench.shapes import Shape as TreeShape
from arpo.bench.shapes import build_tree
from arpo.bench.work import rates
from arpo.credit.base import assign_all
from arpo.credit.settings import SoftCredit
from arpo.engine.base import SampleParams
from arpo.engine.kv import PAGE
from arpo.engine.local import make_engine
from arpo.engine.models import load_policy
from arpo.engine.settings import LocalSettings
from arpo.learn.settings import ClipLoss, OptimSettings
from arpo.learn.update import Learner
from arpo.plan.measured import trajectory_of, work_of
from arpo.plan.phases import gradient_operations
from arpo.plan.shapes import shape_of


def test_tokens_labels_pairs_and_operations_are_those_that_the_learner_executes() -> None:
    model, _ = load_policy("pocket")
    shape = shape_of("pocket")
    trees = [build_tree(TreeShape(20, 60), shape.vocabulary), build_tree(TreeShape(30, 90), shape.vocabulary)]
    learner = Learner(model, ClipLoss(), OptimSettings(micro_tokens=1 << 14), total_updates=1)
    with recorded(learner.head) as passes:
        metrics = learner.update(trees, assign_all(trees, SoftCredit()))
    counted, ends = work_of(trees), sum(len(tree.leaves) for tree in trees)
    # The last token of a trajectory predicts nothing, so it is not computed; it would look at the whole trajectory.
    tokens, pairs = counted.unique - ends, counted.pairs - counted.flat
    assert tokens == metrics["computed_tokens"] == sum(one.tokens for one in passes)
    assert counted.labels == sum(one.labels for one in passes)
    assert pairs == sum(one.pairs for one in passes)
    assert not any(one.chunked for one in passes)
    operations = gradient_operations(shape, tokens, counted.labels, pairs)
    assert operations == pytest.approx(rates(model).gradient(passes), rel=1e-12)
    assert metrics["sharing"] == pytest.approx(counted.flat / tokens)


def test_bytes_of_keys_and_values_are_those_of_the_engine_s_store() -> None:
    model, tokenizer = load_policy("pocket")
    shape, engine = shape_of("pocket"), make_engine(model, tokenizer, LocalSettings(max_cached_tokens=64 * PAGE))
    asyncio.run(engine.sample([1, 2, 3], SampleParams(max_tokens=2), seed=0))
    store = engine._store
    held = sum(layer.numel() * layer.element_size() for layer in (*store.keys, *store.values))
    assert held == store.pages * PAGE * shape.kv_bytes(4) > 0


def test_the_mean_trajectory_of_a_tree() -> None:
    tree = build_tree(TreeShape(20, 210, jitter=0.0), 100)
    mean = trajectory_of([tree])
    assert mean.prompt == 20
    assert mean.response == pytest.approx(np.mean([len(path) - 20 for path in tree.paths()]), abs=mean.calls + 1)
