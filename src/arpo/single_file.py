r"""ARPO in one file: agentic reinforced policy optimisation, from questions to weight updates, with nothing hidden.

    python -m arpo.single_file --steps 20

A language model answers questions by calling tools inside its own text, in the format of the pocket policy:

     What is ... of Chad?<think> ...</think><search> Chad area</search><result> Chad | area: 1284000</result>...
    ...<python>print(7-3)</python><result> 4</result><answer> \boxed{ 4 }</answer><eos>

What comes from a tool is context: never sampled, never in the loss. M trajectories (a group) answer each question. N of
them start from the question. After each tool result the mean entropy H of the next k tokens is compared with the mean
entropy H_root of the first k tokens of the trajectory: P = alpha + beta (H - H_root) / ln V. If P > tau, Z more
trajectories continue from there; so M - N trajectories share beginnings with others, and what is left of the budget
starts from the question. Rewards, normalised within the group, become advantages; a clipped surrogate makes the step.

This file is for reading, and the library is tested against it: same seeds, same tree, same advantages, same loss. Where
it is simple, the library is not: there, nobody waits for the slowest trajectory, caches are shared, files are safe.
"""

import argparse
import hashlib
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic_monty import CollectString, Monty, MontyRuntimeError, MontySyntaxError
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache

from arpo.data.factbook.corpus import ensure_index
from arpo.data.factbook.questions import make_tasks


@dataclass(frozen=True)
class Config:
    total: int = 16  # M: trajectories per question
    initial: int = 8  # N: of these, started from the question
    branches: int = 1  # Z: extra trajectories at one branching point
    window: int = 20  # k: tokens whose entropy is averaged
    base_probability: float = 0.5  # alpha
    entropy_weight: float = 0.2  # beta
    threshold: float = 0.5  # tau
    max_tokens: int = 320  # response tokens of a trajectory, tool results included
    max_calls: int = 6
    temperature: float = 1.0
    credit: str = "soft"  # or "hard"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    steps: int = 5
    prompts: int = 4  # questions per step
    lr: float = 2e-4
    seed: int = 0
    policy: str = str(Path(__file__).parent / "assets" / "pocket")


# ---------------------------------------------------------------- text, tools, randomness

TOOLS = ("search", "python")
Tools = dict[str, Callable[[str], str]]


class Text:
    """The tokenizer. Tags are single tokens, and no text that is encoded can produce one."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = True  # "<result>" in a web page stays ordinary text
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.end = self.tokenizer.token_to_id("<eos>")
        self.stops = {self.tokenizer.token_to_id(f"</{tool}>") for tool in TOOLS}

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def result(self, text: str) -> list[int]:
        before, after = map(self.tokenizer.token_to_id, ("<result>", "</result>"))
        return [before, *self.encode(f" {text.strip()}"), after]


def make_tools() -> Tools:
    index, pool = ensure_index(), Monty(min_processes=1, max_processes=1).__enter__()

    def search(query: str) -> str:
        return " ; ".join(hit.document.line for hit in index.query(query, 2)) or "no results"

    def python(code: str) -> str:
        printed = CollectString(1 << 16)
        with pool.checkout(limits={"max_feed_duration_secs": 1.0, "max_memory": 1 << 26}) as session:
            try:
                session.feed_run(code, print_callback=printed)
            except (MontySyntaxError, MontyRuntimeError) as error:
                return error.display(format="type-msg").splitlines()[0]
        return printed.output.strip("\n") or "(no output)"

    return {"search": search, "python": python}


def seed_of(*parts: str | int) -> int:
    """Every draw is named by its place, so no order of events can change it."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


# ---------------------------------------------------------------- the policy's sampler (a test puts a script here)


class Request(NamedTuple):
    prefix: list[int]
    max_tokens: int
    seed: int


class Draw(NamedTuple):
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    finish: str  # "stop": end token, "call": closing tag of a tool, "length": max_tokens


Sampler = Callable[[list[Request]], list[Draw]]


def make_sampler(model: Any, text: Text, temperature: float) -> Sampler:
    @torch.no_grad()
    def sample(requests: list[Request]) -> list[Draw]:
        longest = max(len(request.prefix) for request in requests)
        tokens = torch.zeros(len(requests), longest, dtype=torch.long)  # prefixes end together: padding on the left
        mask = torch.zeros_like(tokens)
        for row, request in enumerate(requests):
            tokens[row, longest - len(request.prefix) :] = torch.tensor(request.prefix)
            mask[row, longest - len(request.prefix) :] = 1
        position = (mask.cumsum(1) - 1).clamp(min=0)
        draws = [Draw([], [], [], "") for _ in requests]
        dice = [np.random.default_rng(request.seed) for request in requests]
        cache = DynamicCache()
        while not all(draw.finish for draw in draws):
            out = model(tokens, mask, position, cache, use_cache=True, logits_to_keep=1)
            logp = (out.logits[:, -1].double() / temperature).log_softmax(-1)
            entropy = -(logp.exp() * logp).sum(-1)
            below = logp.exp().cumsum(-1) <= torch.tensor([[rng.random()] for rng in dice])
            chosen = below.sum(-1).clamp(max=text.vocab_size - 1)
            for row, (draw, token) in enumerate(zip(draws, chosen.tolist(), strict=True)):
                if not draw.finish:
                    draw.tokens.append(token)
                    draw.logprobs.append(float(logp[row, token]))
                    draw.entropies.append(float(entropy[row]))
                    finish = "stop" if token == text.end else "call" if token in text.stops else ""
                    full = len(draw.tokens) == requests[row].max_tokens
                    draws[row] = draw._replace(finish=finish or ("length" if full else ""))
            tokens, position = chosen[:, None], position[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(tokens)], 1)
        return draws

    return sample


# ---------------------------------------------------------------- rollout: a tree of trajectories


@dataclass(eq=False)
class Piece:
    """A run of tokens by one author. Trajectories that share a beginning hold the same Piece objects."""

    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    @property
    def is_policy(self) -> bool:
        return bool(self.logprobs)


@dataclass
class Walk:
    """One trajectory on its way. `state`: "open" (the policy is writing), "ended segment", "at result", "done"."""

    path: str  # its name, for seeds
    pieces: list[Piece]
    room: int  # response tokens left
    may_branch: bool
    state: str = "open"
    finish: str = ""
    h_root: float = math.nan
    depth: int = 0  # tool results so far
    calls: int = 0  # calls charged, malformed ones included
    drawn: int = 0
    warned: bool = False
    executed: tuple[str, ...] = ()

    def append(self, piece: Piece) -> None:
        self.pieces = [*self.pieces, piece]
        self.room -= len(piece.tokens)

    def prefix(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.tokens]

    def segments(self) -> list[list[int]]:
        """The policy's tokens between tool results."""
        runs: list[list[int]] = [[]]
        for piece in self.pieces[1:]:
            runs[-1].extend(piece.tokens) if piece.is_policy else runs.append([])
        return runs


@dataclass
class Decision:
    path: str
    depth: int
    h_root: float
    h_tool: float
    probability: float
    wanted: int
    opened: int = 0


Group = tuple[list[Walk], list[Decision]]
Asking = Generator[list[Request], list[Draw], Any]  # yields requests, is sent draws: the caller batches whole groups


def rollout(task: Any, config: Config, text: Text, tools: Tools, seed: tuple[str | int, ...]) -> Asking:
    """The group of one task: exactly `total` walks, those from the question, then branches, then top-ups."""
    place = (*seed, task.id)
    prompt = Piece(text.encode(f" {task.question}"))
    decisions: list[Decision] = []

    def start(number: int, may_branch: bool) -> Walk:
        return Walk(f"r{number}", [prompt], config.max_tokens, may_branch)

    def write(walks: list[Walk], limits: list[int]) -> Asking:
        """Let the policy write on, at most `limits` tokens each."""
        requests = [
            Request(walk.prefix(), min(limit, walk.room), seed_of(*place, walk.path, walk.drawn, "sample"))
            for walk, limit in zip(walks, limits, strict=True)
        ]
        draws = (yield requests) if requests else []
        for walk, (tokens, logprobs, entropies, finish) in zip(walks, draws, strict=True):
            cut_short = finish == "length" and len(tokens) < walk.room  # by the window, not by the end of the room
            walk.append(Piece(tokens, logprobs, entropies))
            walk.state, walk.finish = ("open" if cut_short else "ended segment"), finish
            walk.drawn += 1
            if len(walk.pieces) == 2:  # the question and this: the beginning that all later entropies are compared with
                walk.h_root = float(np.mean(entropies[: config.window]))

    def to_next_result(walks: list[Walk]) -> Asking:
        while busy := [walk for walk in walks if walk.state in ("open", "ended segment")]:
            unfinished = [walk for walk in busy if walk.state == "open"]
            yield from write(unfinished, [walk.room for walk in unfinished])
            for walk in busy:
                respond(walk, config, text, tools)

    def open_branches(claims: list[tuple[Walk, Decision]], spare: int) -> list[Walk]:
        """Early depths come first because the levels do; within a level a hash decides, not the index."""
        opened: list[Walk] = []
        for walk, decision in sorted(claims, key=lambda claim: seed_of(*place, claim[0].path, claim[0].depth, "rank")):
            decision.opened = min(decision.wanted, spare - len(opened))
            for number in range(1, decision.opened + 1):
                opened.append(replace(walk, path=f"{walk.path}/{walk.depth}.{number}", drawn=0))
        return opened

    def explore(walks: list[Walk], spare: int) -> Asking:
        """Run walks and what branches off them to their ends, level by level: one level per tool result."""
        everyone = list(walks)
        while walks:
            yield from to_next_result(walks)
            walks = [walk for walk in walks if walk.state == "at result"]
            yield from write(walks, [config.window if walk.may_branch else walk.room for walk in walks])
            verdicts = [(walk, decide(walk, config, text.vocab_size)) for walk in walks]
            decisions.extend(decision for _, decision in verdicts)
            claims = [(w, d) for w, d in verdicts if d.wanted and w.may_branch and w.state == "open"]
            opened = open_branches(claims, spare)
            spare -= len(opened)
            everyone += opened
            walks = walks + opened
        return everyone

    spare = config.total - config.initial
    walks = yield from explore([start(number, spare > 0) for number in range(config.initial)], spare)
    top_ups = [start(config.initial + number, False) for number in range(config.total - len(walks))]
    walks += yield from explore(top_ups, 0)
    return walks, decisions


def decide(walk: Walk, config: Config, vocab_size: int) -> Decision:
    """Branch *after* the window that was measured: the choice must not depend on what a child samples."""
    entropies = walk.pieces[-1].entropies
    h_tool = float(np.mean(entropies[: config.window]))
    delta = (h_tool - walk.h_root) / math.log(vocab_size)
    probability = config.base_probability + config.entropy_weight * delta
    ended_inside = walk.state != "open" and len(entropies) <= config.window
    wanted = config.branches if probability > config.threshold and not ended_inside else 0
    return Decision(walk.path, walk.depth, walk.h_root, h_tool, probability, wanted)


def parse(said: str, finish: str) -> tuple[tuple[str, str] | None, str | None, str]:
    """(call, answer, fault) of one policy segment. A call counts only if its closing tag ended the segment."""
    answers = re.findall(r"<answer>.*?\\boxed\{([^{}]*)\}[^{}]*?</answer>", said, re.DOTALL)
    answer = answers[-1].strip() if answers else None
    if finish != "call":
        return None, answer, ""
    tool = max(TOOLS, key=lambda name: said.rfind(f"</{name}>"))
    _, opening, argument = said.rpartition(f"</{tool}>")[0].rpartition(f"<{tool}>")
    argument = textwrap.dedent(argument.strip("\n")).strip()
    if not opening:
        return None, answer, "A closing tag without its opening tag is no call."
    if not argument:
        return None, answer, "The call was empty."
    return (tool, argument), None, ""


def respond(walk: Walk, config: Config, text: Text, tools: Tools) -> None:
    """After a policy segment: run its call, or say what was wrong with it, or end the trajectory."""
    call, answer, fault = parse(text.decode(walk.segments()[-1]), walk.finish)
    if answer is not None or walk.finish != "call" or (walk.calls >= config.max_calls and walk.warned):
        walk.state = "done"
        return
    if walk.calls >= config.max_calls:
        walk.warned, shown = True, text.result("No tool calls left. Answer now.")
    elif call is None:
        walk.calls, shown = walk.calls + 1, text.result(f"{fault} Tools: {', '.join(TOOLS)}.")
    else:
        tool, argument = call
        shown = text.result(tools[tool](argument))
        walk.calls, walk.depth, walk.executed = walk.calls + 1, walk.depth + 1, (*walk.executed, tool)
    if len(shown) >= walk.room:  # no token would fit behind it
        walk.state = "done"
        return
    is_result = call is not None and not walk.warned
    walk.append(Piece(shown))
    walk.state = "at result" if is_result else "open"


def run_groups(groups: Sequence[Asking], sample: Sampler) -> list[Group]:
    """Advance all groups together; what they ask for in a round is sampled as one batch."""
    done: dict[int, Group] = {}
    asked = {number: next(group) for number, group in enumerate(groups)}
    while asked:
        draws = iter(sample([request for requests in asked.values() for request in requests]))
        for number, requests in list(asked.items()):
            try:
                asked[number] = groups[number].send([next(draws) for _ in requests])
            except StopIteration as end:
                done[number] = end.value
                del asked[number]
    return [done[number] for number in range(len(groups))]


# ---------------------------------------------------------------- rewards, credit, loss


def reward(walk: Walk, task: Any, text: Text) -> float:
    """Malformed -1; wrong 0; right 1, and 0.1 more if both tools were executed on the way."""
    *calls, last = said = [text.decode(segment) for segment in walk.segments()]
    answer = parse(last, "stop")[1]
    answers_once = last.count("<answer>") == 1 and not any(f"<{tool}>" in last for tool in TOOLS)
    calls_only = all(parse(call, "call")[0] and "<answer>" not in call for call in calls)
    if answer is None or not answers_once or not calls_only or not all(map(well_paired, said)):
        return -1.0
    right = any(same_answer(answer, gold) for gold in task.answers)
    return right * (1.0 + 0.1 * (set(TOOLS) <= set(walk.executed)))


def well_paired(said: str) -> bool:
    """Every opening tag is followed by its closing tag before the next one opens; results are not forged."""
    tags = re.findall(r"<(/?)(think|search|python|answer|result)>", said)
    pairs = zip(tags[0::2], tags[1::2], strict=False)
    return len(tags) % 2 == 0 and all(a == ("", b[1]) and b[0] == "/" and b[1] != "result" for a, b in pairs)


def same_answer(answer: str, gold: str) -> bool:
    try:
        return math.isclose(float(answer.replace(",", "")), float(gold.replace(",", "")), rel_tol=1e-12)
    except ValueError:
        return answer.split() == gold.split()


def advantages(walks: list[Walk], rewards: list[float], credit: str) -> list[list[float]]:
    """One value per walk and piece. Soft: the walk's own; hard: the mean over the walks that share the piece."""
    r = np.array(rewards, np.float64)
    own = np.zeros(len(r)) if r.min() == r.max() else (r - r.mean()) / (r.std() + 1e-6)
    through = defaultdict(list)
    for walk, value in zip(walks, own, strict=True):
        for piece in walk.pieces:
            through[piece].append(value)
    if credit == "hard":
        return [[float(np.mean(through[piece])) for piece in walk.pieces] for walk in walks]
    return [[float(value)] * len(walk.pieces) for walk, value in zip(walks, own, strict=True)]


def surrogate_loss(model: Any, walks: list[Walk], values: list[list[float]], config: Config) -> torch.Tensor:
    """Mean over all policy tokens of -min(r A, clip(r) A), held at -c A for A < 0; r = policy / sampler."""
    dtype = next(model.parameters()).dtype
    length = max(len(walk.prefix()) for walk in walks)
    tokens = torch.zeros(len(walks), length, dtype=torch.long)
    old, advantage = torch.zeros(len(walks), length, dtype=dtype), torch.zeros(len(walks), length, dtype=dtype)
    mask = torch.zeros(len(walks), length, dtype=torch.bool)
    for row, (walk, pieces) in enumerate(zip(walks, values, strict=True)):
        at = 0
        for piece, value in zip(walk.pieces, pieces, strict=True):
            here = slice(at, at := at + len(piece.tokens))
            tokens[row, here] = torch.tensor(piece.tokens)
            if piece.is_policy:
                old[row, here], advantage[row, here] = torch.tensor(piece.logprobs, dtype=dtype), value
                mask[row, here] = True
    logp = (model(tokens, use_cache=False).logits[:, :-1] / config.temperature).log_softmax(-1)
    logp = logp.gather(2, tokens[:, 1:, None])[..., 0][mask[:, 1:]]  # padding is on the right: nothing sees it
    a = advantage[:, 1:][mask[:, 1:]]
    ratio = (logp - old[:, 1:][mask[:, 1:]]).exp()
    objective = torch.minimum(ratio * a, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * a)
    objective = torch.where(a < 0, torch.maximum(objective, config.dual_clip * a), objective)
    return -objective.mean()


# ---------------------------------------------------------------- training


def train(config: Config) -> None:
    text, tools = Text(Path(config.policy)), make_tools()
    model = AutoModelForCausalLM.from_pretrained(config.policy, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0)
    sample = make_sampler(model, text, config.temperature)
    tasks = make_tasks("train", config.steps * config.prompts, config.seed)
    for step in range(1, config.steps + 1):
        batch = [tasks.pop() for _ in range(config.prompts)]
        groups = run_groups([rollout(task, config, text, tools, (config.seed, step)) for task in batch], sample)
        rewards = [[reward(walk, task, text) for walk in walks] for task, (walks, _) in zip(batch, groups, strict=True)]
        used, values = [], []
        for (walks, _), r in zip(groups, rewards, strict=True):
            if min(r) < max(r):  # a group without variance has no gradient
                used += walks
                values += advantages(walks, r, config.credit)
        if used:
            loss = surrogate_loss(model, used, values, config)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        branches = sum(decision.opened for _, decisions in groups for decision in decisions)
        print(f"step {step}: reward {np.mean(rewards):.3f}, {branches} branches, {len(used)} walks used", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small tool-using policy by ARPO.")
    for name, default in Config().__dict__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    config = Config(**vars(parser.parse_args()))
    if not (Path(config.policy) / "tokenizer.json").is_file():
        parser.error(f"no policy in {config.policy}: name a folder with --policy (`arpo sft` makes one)")
    train(config)


if __name__ == "__main__":
    main()
