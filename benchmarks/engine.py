"""What the local engine gains: side-by-side runs in one process.

    python benchmarks/engine.py [--model pocket|PATH] [--prompts 16] [--group 8] [--prompt-tokens 25] [--rounds 3]
                                [--threads 1] [--arms reuse no-entropy ...]

The job imitates a rollout of the pocket policy: per prompt a group of trajectories of two to four policy segments with
a tool result after each but the last, 155 tokens in the mean. Segments have fixed lengths (end tokens off), so every
arm samples the same number of tokens. The arms take turns; the table gives medians over the rounds. On a busy machine
read the CPU seconds.

Arms: `reuse` (the engine as it is), `no-entropy` (zeros instead of exact entropies), `stock` (reuse with the module's
own forward), `re-prefill` (prefix_reuse=False: what an engine does that forgets), and `generate`: transformers'
`generate` on the same prompts, all turns as one batch per turn, whole prefix computed again. Without `--model` the
pocket architecture with random weights is used.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from arpo.engine import EngineStats, SampleParams
from arpo.engine.kv import PAGE
from arpo.engine.local import LocalEngine
from arpo.engine.models import load_policy

NEVER = (1 << 30,)


def random_pocket() -> tuple[Any, Any]:
    """The pocket architecture: 0.92 M parameters, 512 tokens."""
    config = Qwen3Config(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True,
        eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    core = Tokenizer(WordLevel({f"w{i}": i for i in range(512)}, unk_token="w0"))
    return Qwen3ForCausalLM(config).eval(), PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w0")


class Job:
    """The lengths of one imitated rollout, drawn once: prompts, segments per trajectory, results."""

    def __init__(self, prompts: int, group: int, vocabulary: int, prompt_tokens: int = 25) -> None:
        rng = np.random.default_rng(0)
        lengths = prompt_tokens + rng.integers(-10, 10, prompts)
        self.prompts = [rng.integers(2, vocabulary, length).tolist() for length in lengths]
        self.starts = [prompt for prompt in self.prompts for _ in range(group)]
        turns = rng.integers(2, 5, len(self.starts))
        self.segments = [rng.integers(15, 45, count).tolist() for count in turns]
        self.results = [[rng.integers(2, vocabulary, rng.integers(10, 30)).tolist() for _ in range(n)] for n in turns]
        self.sampled = sum(map(sum, self.segments))
        shown = sum(len(result) for results in self.results for result in results[:-1])
        self.unique = sum(map(len, self.prompts)) + self.sampled + shown


async def rollout(engine: LocalEngine, job: Job) -> None:
    async def trajectory(index: int) -> None:
        tokens = job.starts[index]
        for turn, length in enumerate(job.segments[index]):
            params = SampleParams(length, end_tokens=NEVER, stop=("</search>",))
            segment = await engine.sample(tokens, params, index * 100 + turn)
            tokens = [*tokens, *segment.tokens.tolist(), *job.results[index][turn]]

    await asyncio.gather(*(trajectory(index) for index in range(len(job.starts))))


def engine_arm(model: Any, tokenizer: Any, job: Job, **options: Any) -> Callable[[], None]:
    engine = LocalEngine(model, tokenizer, **options)

    def run() -> None:
        asyncio.run(engine.publish(model, 1))
        engine.stats = EngineStats()
        asyncio.run(rollout(engine, job))

    run.engine = engine  # type: ignore[attr-defined]

    return run


def generate_arm(model: Any, job: Job) -> Callable[[], None]:
    """Turn by turn: left-padded batch of whole prefixes, everyone samples as many tokens as the longest asks for."""

    def run() -> None:
        states = list(job.starts)
        for turn in range(max(map(len, job.segments))):
            live = [i for i, lengths in enumerate(job.segments) if turn < len(lengths)]
            wanted = [job.segments[i][turn] for i in live]
            outputs = _generate(model, [states[i] for i in live], max(wanted))
            for i, length, output in zip(live, wanted, outputs, strict=True):
                states[i] = [*states[i], *output[:length], *job.results[i][turn]]

    return run


def _generate(model: Any, prefixes: list[list[int]], count: int) -> list[list[int]]:
    width = max(map(len, prefixes))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prefixes], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prefixes], device=model.device)
    config = GenerationConfig(max_new_tokens=count, min_new_tokens=count, do_sample=True, top_k=0, pad_token_id=0)
    with torch.inference_mode():
        return model.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a name for load_policy; default: pocket architecture, random weights")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=25, help="in the mean; at least 11")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", nargs="+", default=["reuse", "no-entropy", "stock", "re-prefill", "generate"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load_policy(options.model) if options.model else random_pocket()
    job = Job(options.prompts, options.group, model.config.vocab_size, options.prompt_tokens)
    arms: dict[str, Any] = {
        "reuse": engine_arm(model, tokenizer, job),
        "no-entropy": engine_arm(model, tokenizer, job, entropy="none"),
        "stock": engine_arm(model, tokenizer, job, fused=False),
        "re-prefill": engine_arm(model, tokenizer, job, prefix_reuse=False),
        "generate": generate_arm(model, job),
    }
    arms = {name: arms[name] for name in ("reuse", *options.arms)}
    wall: dict[str, list[float]] = {name: [] for name in arms}
    cpu: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, run in arms.items():
            started, busy = time.perf_counter(), time.process_time()
            run()
            wall[name].append(time.perf_counter() - started)
            cpu[name].append(time.process_time() - busy)
    print(f"{job.sampled} sampled tokens, {len(job.starts)} trajectories, {torch.get_num_threads()} thread(s)")
    print("arm            wall s   CPU s   tokens per wall s / CPU s   CPU time ratio")
    for name in arms:
        w, c = statistics.median(wall[name]), statistics.median(cpu[name])
        ratio = c / statistics.median(cpu["reuse"])
        print(f"{name:12} {w:8.2f} {c:7.2f} {job.sampled / w:16.0f} / {job.sampled / c:5.0f} {ratio:16.2f}")
    engine = arms["reuse"].engine
    made = engine._store.pages * PAGE
    print(
        f"reuse: {engine.stats.computed_tokens} tokens computed, {job.unique} unique; the cache grew to {made} tokens"
    )


if __name__ == "__main__":
    main()
