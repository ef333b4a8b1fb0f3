"""Rollouts that search the web offline: examples/offline_search.toml, from a cache in the published format alone.

A scripted policy asks one query per question and answers with the gold answer if what it read holds it, else with
"unknown". So a rewarded trajectory proves that the answer came through cache, tool, dialect and prompt. The same file
then runs against a server in SearXNG's form.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from search_providers import Answer, Asked, ProviderServer, searxng
from tag_tokenizers import chat_tokenizer

from arpo.config.load import load
from arpo.config.schema import Config
from arpo.config.wire import build_toolbox, refuse_unbacked_prompts
from arpo.data.tasks import read_tasks
from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.protocol.registry import build as build_dialect
from arpo.reward.compose import score
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.task import Task
from arpo.tools.search.legacy import import_file
from arpo.tools.search.store import Store
from arpo.tree import RolloutTree, Source

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "offline_search.toml"
PUBLISHED = ROOT / ".." / "shared" / "data" / "arpo_rl"

QUERIES = {
    "mammy": "who played mammy in gone with the wind",
    "merle": ' "Natasha Merle" legal career start in New York from 2008 to 2009',
    "morrowind": "search query: Morrowind The Lusty Argonian Maid Vivec city whose body",
    "walker": "What year was Kara Walker elected to be an Honorary Royal Academician at the Royal Academy of Arts?",
}
"""By task of the example; all are keys of the excerpt, in the spellings that do not count."""


TOKENIZER = functools.cache(chat_tokenizer)


def config(cache: Path, *changes: str) -> Config:
    small = ["rollout.total=4", "rollout.initial=2", "rollout.max_result_tokens=4096", "rollout.max_tokens=8192"]
    mine = [f"tools.0.cache.path={cache}", "tools.1.backend=monty", "run.seed=3", *small]
    return load([EXAMPLE], [*mine, *changes], environ={}).config


def filled(cache: Path, file: Path) -> Path:
    store = Store(cache)
    import_file(file, store)
    store.close()
    return cache


async def roll(config: Config, task: Task, query: str) -> RolloutTree:
    """The tree of a policy that asks `query` and believes what it reads; scored."""
    tokenizer, toolbox = TOKENIZER(), build_toolbox(config)
    refuse_unbacked_prompts([task], toolbox.names)
    dialect = build_dialect(config.protocol, tokenizer, toolbox.tools)
    start = dialect.prompt(task).tolist()

    def continuation(prefix: tuple[int, ...], seed: int) -> Sequence[Scripted]:
        read = tokenizer.decode(prefix[len(start) :])
        found = next((gold for gold in task.answers if gold in read), "unknown")
        ask = f"<think>I look it up.</think><search>{query}</search>"
        answer = f"<think>Read.</think><answer>\\boxed{{{found}}}</answer><|im_end|>"
        turn, said = (answer, read.rpartition("</result>\n")[2]) if "</result>" in read else (ask, read)
        tokens = tokenizer.encode(turn, add_special_tokens=False)
        done = len(tokenizer.encode(said, add_special_tokens=False))
        return [Scripted(token, -0.5, 0.3) for token in tokens[done:]]

    engine = ScriptedEngine(continuation, dialect.decode, end_tokens=dialect.end_tokens)
    agent = Agent(engine, dialect, toolbox, len(tokenizer))
    async with agent:
        tree = await rollout(
            task, agent, settings=config.rollout, entropy=config.entropy, seed_parts=(config.run.seed, "test")
        )
        return tree.with_outcomes(score(tree, task, dialect, config.reward))


def results(tree: RolloutTree) -> list[str]:
    """What the policy read, once per result."""
    return [TOKENIZER().decode(segment.tokens) for segment in tree.segments if segment.source is Source.TOOL]


def rewards(tree: RolloutTree) -> list[float | None]:
    return [outcome.reward for outcome in tree.outcomes]


def events(tree: RolloutTree) -> list[tuple[str, bool]]:
    return [(s.event.status, s.event.cached) for s in tree.segments if s.event is not None and not s.event.shared]


@pytest.fixture
def excerpt(tmp_path: Path) -> Path:
    return filled(tmp_path / "cache.sqlite", ROOT / "examples" / "data" / "search_cache.json")


def tasks() -> Mapping[str, Task]:
    return {task.id: task for task in read_tasks(ROOT / "examples" / "data" / "offline_questions.jsonl")}


async def test_questions_are_answered_from_the_cache_alone(excerpt):
    offline = config(excerpt)
    assert (offline.tools[0].cache.mode, offline.tools[0].base_url) == ("read_only", "")
    assert set(tasks()) == set(QUERIES)
    for name, task in tasks().items():
        tree = await roll(offline, task, QUERIES[name])
        assert len(tree.leaves) == 4
        assert [reward is not None and reward > 0 for reward in rewards(tree)] == [True] * 4
        assert set(events(tree)) == {("ok", True)}
        assert all(text.strip().startswith("<result>\nPage 1: ") for text in results(tree))


async def test_a_miss_costs_the_trajectory_its_reward_and_the_policy_reads_nothing(excerpt):
    tree = await roll(config(excerpt), tasks()["mammy"], "a query that nobody asked before")
    assert rewards(tree) == [None] * 4
    assert {status for status, _ in events(tree)} == {"infra_error"}
    assert "".join(results(tree)).strip() == ""


async def test_a_miss_may_be_declared_to_read_like_nothing_found(excerpt):
    tree = await roll(config(excerpt, "tools.0.cache.on_miss=empty"), tasks()["mammy"], "nobody asked this before")
    assert {text.strip() for text in results(tree)} == {"<result>\nNo search results found.\n</result>"}
    assert {reward is not None and reward <= 0 for reward in rewards(tree)} == {True}


async def test_the_same_file_runs_against_a_searxng_server_and_then_without_it(excerpt):
    def reply(asked: Asked) -> Answer:
        page = {"url": "https://a.example/", "title": "t", "content": "It was Hattie McDaniel, says the server."}
        return Answer(body={**searxng(asked.params["q"]), "results": [page]})

    task = tasks()["mammy"]
    with ProviderServer() as server:
        server.reply = reply
        online = ["tools.0.cache.mode=read_write", f"tools.0.base_url={server.url}"]
        tree = await roll(config(excerpt, *online), task, "a question for the server")
        assert {text.strip() for text in results(tree)} == {
            "<result>\nPage 1: It was Hattie McDaniel, says the server.\n</result>"
        }
        assert [asked.params for asked in server.requests] == [{"q": "a question for the server", "format": "json"}]
        await roll(config(excerpt, *online), task, QUERIES["mammy"])
        assert len(server.requests) == 1, "an imported entry answers before the provider"
    assert min(reward or 0 for reward in rewards(tree)) > 0
    again = await roll(config(excerpt), task, "a  question for the server")
    assert results(again)[0] == results(tree)[0]
    assert set(events(again)) == {("ok", True)}


PUBLISHED_QUERIES = {
    26: "who played mammy in gone with the wind",
    69: "vocalist and pianist recorded by Modular Recordings",
    312: "What year was Kara Walker elected to be an Honorary Royal Academician at the Royal Academy of Arts?",
    468: "Natasha Merle legal career start in New York from 2008 to 2009",
    723: "Morrowind The Lusty Argonian Maid Vivec city whose body",
}
"""By row of hard_search_1k.parquet."""


async def test_published_questions_are_answered_from_the_published_cache(tmp_path):
    file = PUBLISHED / "search_cache.json"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    offline = config(filled(tmp_path / "cache.sqlite", file))
    published = read_tasks(PUBLISHED / "hard_search_1k.parquet")
    right = 0
    for row, query in PUBLISHED_QUERIES.items():
        tree = await roll(offline, published[row - 1], query)
        assert set(events(tree)) == {("ok", True)}
        assert all(re.match(r"\s*<result>\nPage 1: .*\nPage 2: ", text) for text in results(tree))
        right += min(reward or 0.0 for reward in rewards(tree)) > 0
    assert right >= 4
    missed = await roll(offline, published[0], "a query that is in no cache")
    assert rewards(missed) == [None] * 4
