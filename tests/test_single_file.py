"""The library and the one-file version on the same script: same tree, same decisions, same advantages, same loss."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact_norms import exact_norms
from transformers import AutoTokenizer, Qwen3ForCausalLM

from arpo import seeds, single_file
from arpo.credit import assign
from arpo.credit.settings import credit_settings
from arpo.data.pocket import build_pocket, train_tokenizer
from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.learn.settings import ClipLoss, OptimSettings
from arpo.learn.update import Learner
from arpo.protocol.tags import TagsDialect
from arpo.reward.compose import score
from arpo.reward.settings import RewardSettings
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import EntropyRule, EntropySettings, RolloutSettings
from arpo.single_file import Config, Draw, Request, Text, Walk
from arpo.task import Task, ask
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.toolbox import ToolBox
from arpo.tree import Outcome, RolloutTree

SEED = ("run", 7)
TASKS = [ask(f"What is {i} plus {i}?", str(2 * i), id=f"task-{i}", kind="number") for i in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pocket policy with random weights."""
    place = tmp_path_factory.mktemp("pocket")
    tokenizer = train_tokenizer(sentences=300)
    torch.manual_seed(0)
    build_pocket(tokenizer, hidden_size=32, intermediate_size=48, num_hidden_layers=2).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


class Script:
    """A policy made up on the spot: what it writes next is a function of the request's seed."""

    def __init__(self, text: Text, answers: int = 5) -> None:
        self.text, self.answers = text, answers

    def __call__(self, prefix: Sequence[int], seed: int) -> list[Scripted]:
        draw = np.random.default_rng(seed)
        thought = " ".join(draw.choice(["Chad", "area", "7", "of", "the"], draw.integers(0, 25)))
        ends = {
            f"<search> area {draw.integers(3)}</search>": 0.4,
            f"<python>print({draw.integers(3)}+{draw.integers(3)})</python>": 0.25,
            "</search>": 0.04,
            "<python> </python>": 0.04,
            "<eos>": 0.04,
            f"<answer> \\boxed{{ {draw.integers(self.answers)} }}</answer><eos>": 0.23,
        }
        thinks = thought if draw.random() < 0.5 else f"<think> {thought}</think>"
        said = thinks + str(draw.choice(list(ends), p=list(ends.values())))
        tokens = self.text.tokenizer
        tokens.encode_special_tokens = False
        ids = tokens.encode(said, add_special_tokens=False).ids
        tokens.encode_special_tokens = True
        numbers = draw.uniform(0, 2, (2, len(ids))).astype(np.float32)
        numbers[0] = -4.5 - 2 * numbers[0]  # around ln(1/512), where a model with random weights has them
        return [Scripted(token, float(p), float(h)) for token, p, h in zip(ids, *numbers, strict=True)]

    def sample(self, requests: list[Request]) -> list[Draw]:
        """The same script for the one-file version."""
        return [self._draw(request) for request in requests]

    def _draw(self, request: Request) -> Draw:
        steps, finish = [], "length"
        for step in self(request.prefix, request.seed)[: request.max_tokens]:
            steps.append(step)
            if step.token == self.text.end or step.token in self.text.stops:
                finish = "stop" if step.token == self.text.end else "call"
                break
        return Draw([s.token for s in steps], [s.logprob for s in steps], [s.entropy for s in steps], finish)


def fake_search(query: str) -> str:
    length = hashlib.sha256(query.encode()).digest()[0] % 40
    return "Chad | area: " + "7" * length


def fake_python(code: str) -> str:
    return str(len(code))


class FakeTool:
    def __init__(self, name: str, argument: str, run: Any) -> None:
        self.name, self.description, self.run = name, name, run
        self.argument = argument
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
        }

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(ToolStatus.OK, self.run(arguments[self.argument]))


TOOLS = [FakeTool("search", "query", fake_search), FakeTool("python", "code", fake_python)]


def by_library(folder: Path, config: Config, script: Script, tasks: Sequence[Task]) -> list[RolloutTree]:
    toolbox = ToolBox(TOOLS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    dialect = TagsDialect(tokenizer, toolbox.tools, style="compact")
    rule = EntropyRule(
        base_probability=config.base_probability,
        entropy_weight=config.entropy_weight,
        threshold=config.threshold,
    )
    settings = RolloutSettings(
        total=config.total,
        initial=config.initial,
        branches=config.branches,
        max_tokens=config.max_tokens,
        max_calls=config.max_calls,
        branching=rule,
    )
    many = rollout_many(
        tasks,
        Agent(ScriptedEngine(script, dialect.decode), dialect, toolbox, len(tokenizer)),
        settings=settings,
        entropy=EntropySettings(window=config.window),
        seed_parts=SEED,
    )
    return asyncio.run(many)


def by_single_file(config: Config, script: Script, tasks: Sequence[Task]) -> list[single_file.Group]:
    tools = {"search": fake_search, "python": fake_python}
    groups = [single_file.rollout(task, config, script.text, tools, SEED) for task in tasks]
    return single_file.run_groups(groups, script.sample)


def sharing(walks: list[Walk]) -> list[list[int]]:
    """How many walks share each token."""
    holders: dict[int, int] = {}
    for walk in walks:
        for piece in walk.pieces:
            holders[id(piece)] = holders.get(id(piece), 0) + 1
    return [[holders[id(piece)] for piece in walk.pieces for _ in piece.tokens] for walk in walks]


CONFIGS = {
    "paper": Config(total=16, initial=8),
    "wide": Config(total=12, initial=2, branches=3, window=5, max_calls=4),
    "rarely": Config(total=8, initial=4, threshold=0.53, window=12, max_tokens=120),
    "short": Config(total=8, initial=3, window=3, max_tokens=60, max_calls=2),
    "no branching": Config(total=6, initial=6),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_same_trees_and_decisions(folder: Path, name: str) -> None:
    config, script = CONFIGS[name], Script(Text(folder))
    trees, groups = by_library(folder, config, script, TASKS), by_single_file(config, script, TASKS)
    for tree, (walks, decisions) in zip(trees, groups, strict=True):
        assert [path.token_T.tolist() for path in tree.paths()] == [walk.prefix() for walk in walks]
        masks = [[piece.is_policy for piece in walk.pieces for _ in piece.tokens] for walk in walks]
        assert [path.policy_T.tolist() for path in tree.paths()] == masks
        assert [tree.multiplicity[path.node_T].tolist() for path in tree.paths()] == sharing(walks)
        order = {walk.path: place for place, walk in enumerate(walks)}
        ours = sorted(decisions, key=lambda d: (order[d.path], d.depth))
        assert [(d.depth, d.wanted, d.opened) for d in ours] == [(d.depth, d.wanted, d.opened) for d in tree.decisions]
        for mine, theirs in zip(ours, tree.decisions, strict=True):
            got = (mine.h_root, mine.h_tool, mine.probability)
            assert got == pytest.approx((theirs.h_root, theirs.h_tool, theirs.probability), abs=1e-12)


def test_the_script_exercises_what_is_compared(folder: Path) -> None:
    """Branches, refused branches, top-ups, malformed calls, spent calls and spent room all occur."""
    script = Script(Text(folder))
    groups = {name: by_single_file(config, script, TASKS) for name, config in CONFIGS.items()}
    every = [(w, d) for batch in groups.values() for w, d in batch]
    decisions = [d for _, ds in every for d in ds]
    walks = [w for ws, _ in every for w in ws]
    assert sum(d.opened for d in decisions) > 20
    assert any(0 < d.opened < d.wanted for d in decisions)
    assert any(d.wanted and not d.opened for d in decisions)
    assert any(w.path == f"r{CONFIGS['rarely'].initial}" for ws, _ in groups["rarely"] for w in ws)
    assert any(w.warned for w in walks)
    assert any(w.calls > w.depth for w in walks)
    assert any(w.room == 0 for w in walks)


def test_same_rewards(folder: Path) -> None:
    config, script = Config(total=16, initial=6, window=7), Script(Text(folder), answers=2)
    dialect = TagsDialect(AutoTokenizer.from_pretrained(folder), TOOLS, style="compact")
    tasks = [ask("What is 0 plus 1?", "1", id=f"one-{i}", kind="number") for i in range(6)]
    seen = set()
    trees, groups = by_library(folder, config, script, tasks), by_single_file(config, script, tasks)
    for tree, (walks, _), task in zip(trees, groups, tasks, strict=True):
        theirs = [outcome.reward for outcome in score(tree, task, dialect, RewardSettings())]
        mine = [single_file.reward(walk, task, script.text) for walk in walks]
        assert mine == pytest.approx(theirs)
        seen |= set(mine)
    assert seen == {-1.0, 0.0, 1.0, 1.1}


@pytest.mark.parametrize("credit", ["soft", "hard"])
def test_same_advantages_and_loss(folder: Path, credit: str) -> None:
    config, script = Config(total=6, initial=3, window=5, max_tokens=120, credit=credit), Script(Text(folder))
    trees, groups = by_library(folder, config, script, TASKS), by_single_file(config, script, TASKS)
    draw = np.random.default_rng(0)
    used, values, scored, credits = [], [], [], []
    for tree, (walks, _) in zip(trees, groups, strict=True):
        rewards = draw.choice([-1.0, 0.0, 1.0, 1.1], len(walks)).tolist()
        own = single_file.advantages(walks, rewards, credit)
        scored.append(tree.with_outcomes([Outcome(r) for r in rewards]))
        credits.append(assign(scored[-1], credit_settings(type=credit)))
        for path, value, walk, pieces in zip(tree.paths(), credits[-1].values, walks, own, strict=True):
            assert value is not None
            mine = [a * p.is_policy for p, a in zip(walk.pieces, pieces, strict=True) for _ in p.tokens]
            theirs = value[np.searchsorted(path.nodes, path.node_T)]
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
        used += walks
        values += own
    model = exact_norms(Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float64).eval())
    mine = single_file.surrogate_loss(model, used, values, config)
    learner = Learner(model, ClipLoss(), OptimSettings(micro_tokens=700), total_updates=1)
    metrics = learner.update(scored, credits)
    assert mine.item() == pytest.approx(metrics["loss"], rel=1e-12)
    assert abs(mine.item()) > 1e-3
    assert min(metrics[f"clip_ratio/{side}"] for side in ("low", "high", "dual")) > 0.01


@pytest.mark.parametrize("credit", ["soft", "hard"])
def test_same_gradient(folder: Path, credit: str) -> None:
    """Ours shares what the trajectories share, the single file pads: equal to rounding."""
    config, script = Config(total=6, initial=3, window=5, max_tokens=120), Script(Text(folder))
    (tree,), ((walks, _),) = by_library(folder, config, script, TASKS[:1]), by_single_file(config, script, TASKS[:1])
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    model = exact_norms(Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float64).eval())
    single_file.surrogate_loss(model, walks, single_file.advantages(walks, rewards, credit), config).backward()
    mine = torch.cat([p.grad.flatten() for p in model.parameters()])
    scored = tree.with_outcomes([Outcome(r) for r in rewards])
    for micro_tokens in (100, 700, 16384):
        model.zero_grad()
        learner = Learner(
            model, ClipLoss(), OptimSettings(max_grad_norm=1e9, micro_tokens=micro_tokens), total_updates=1
        )
        learner.stepper.step = lambda _lr: None  # type: ignore[method-assign]
        assert learner.update([scored], [assign(scored, credit_settings(type=credit))])["sharing"] > 1.01
        theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert (mine - theirs).norm() < 1e-12 * mine.norm()


def test_same_seeds() -> None:
    assert single_file.seed_of("a", 1, "r0/1.1") == seeds.derive("a", 1, "r0/1.1")


def test_the_sampler_reports_the_log_probs_that_the_loss_sees(folder: Path) -> None:
    text = Text(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    sample = single_file.make_sampler(model, text, temperature=0.7)
    prefixes = [text.encode(" What is the area of Chad?"), text.encode(" 7"), text.encode(" Which is larger?")]
    requests = [Request(prefix, 5 + 4 * i, seed=i) for i, prefix in enumerate(prefixes)]
    together = sample(requests)
    for request, draw in zip(requests, together, strict=True):
        assert draw == sample([request])[0]._replace(
            logprobs=pytest.approx(draw.logprobs, abs=1e-9), entropies=pytest.approx(draw.entropies, abs=1e-9)
        )
        assert len(draw.tokens) <= request.max_tokens
        logits = model(torch.tensor([request.prefix + draw.tokens])).logits[0] / 0.7
        logp = logits.log_softmax(-1)[len(request.prefix) - 1 : -1]
        own = logp.gather(1, torch.tensor(draw.tokens)[:, None])[:, 0]
        assert draw.logprobs == pytest.approx(own.tolist(), abs=1e-9)
        assert draw.entropies == pytest.approx((-(logp.exp() * logp).sum(-1)).tolist(), abs=1e-9)


def walk_saying(text: Text, *segments: str, executed: tuple[str, ...] = ()) -> Walk:
    text.tokenizer.encode_special_tokens = False
    pieces = [single_file.Piece([1])]
    for said in segments:
        ids = text.encode(said)
        pieces += [single_file.Piece(ids, [-1.0] * len(ids), [0.0] * len(ids)), single_file.Piece([2])]
    return Walk("r0", pieces[:-1], 0, False, executed=executed)


@pytest.mark.parametrize(
    ("segments", "executed", "expected"),
    [
        (["<answer> \\boxed{ 4 }</answer><eos>"], (), 1.0),
        (["<search> x</search>", "<answer> \\boxed{ 4.0 }</answer><eos>"], ("search",), 1.0),
        (["<search> x</search>", "<python>1</python>", "<answer> \\boxed{4}</answer>"], ("search", "python"), 1.1),
        (["<search> x</search>", "<python>1</python>", "<answer> \\boxed{5}</answer>"], ("search", "python"), 0.0),
        (["<answer> 4</answer><eos>"], (), -1.0),
        (["<search> </search>", "<answer> \\boxed{4}</answer>"], (), -1.0),
        (["<answer> \\boxed{4}</answer><search> x</search>"], (), -1.0),
        (["4<eos>"], (), -1.0),
        (["<think> 4<answer> \\boxed{4}</answer>"], (), -1.0),
        (["<result> 4</result><answer> \\boxed{4}</answer>"], (), -1.0),
    ],
)
def test_rewards(folder: Path, segments: list[str], executed: tuple[str, ...], expected: float) -> None:
    text = Text(folder)
    task = ask("What is 2 plus 2?", "4", kind="number")
    assert single_file.reward(walk_saying(text, *segments, executed=executed), task, text) == pytest.approx(expected)


def test_training_changes_the_policy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(single_file, "reward", lambda walk, _task, _text: float(sum(walk.prefix()) % 2))
    monkeypatch.setattr(single_file, "make_tools", lambda: {"search": fake_search, "python": fake_python})
    kept: list[Any] = []
    load = single_file.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        single_file.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: kept.append(load(*a, **k)) or kept[-1]
    )
    train = Config(policy=str(folder), steps=2, prompts=2, total=4, initial=2, max_tokens=24, lr=1e-3)
    single_file.train(train)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 1", "step 2"]
    before = load(folder)
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), kept[0].parameters(), strict=True)]
    assert all(moved)


def test_real_tools() -> None:
    tools = single_file.make_tools()
    assert tools["python"]("print(7-3)") == "4"
    assert tools["python"]("x = 1") == "(no output)"
    assert tools["python"]("1/0") == "ZeroDivisionError: division by zero"
    assert tools["search"]("qqqq") == "no results"
    assert tools["search"]("Chad area").startswith("Chad | ")


def test_a_missing_policy_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["single_file", "--policy", "/nowhere"])
    with pytest.raises(SystemExit) as exit_:
        single_file.main()
    assert exit_.value.code == 2
    assert "no policy in /nowhere" in capsys.readouterr().err
