"""TRL's side of `make bench-trl`: GRPOTrainer with its own tool loop, made to speak the pocket policy's language.

The loop is TRL's: `tools=[...]`, generation by transformers, all rows turn by turn, calls one after the other, the
whole prefix computed again each turn. What it needs to run the same conversation as ours: a chat template that renders
questions and results as the policy knows them (the same token ids, which is checked), a response template that finds
the calls in what was generated, and the closing tags among the end tokens.

What cannot be made equal. A call that is not closed when the text ends is run by TRL, and ends the trajectory in ours.
A malformed call ends TRL's trajectory; ours answers with a correction. Both are rare, and calls and tokens per
trajectory of both sides are reported.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from arpo.bench.rollout_arms import Run
from arpo.protocol.base import Dialect
from arpo.reward.answers import best_score
from arpo.task import Task
from arpo.tools.base import ToolContext
from arpo.tools.toolbox import ToolBox

ARGUMENTS = {"search": "query", "python": "code"}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %} {{ message.content }}"
    "{% elif message.role == 'tool' %}<result> {{ message.content }}</result>"
    "{% elif message.role == 'assistant' %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<{{ call.function.name }}>"
    "{% if 'text' in call.function.arguments %}{{ call.function.arguments.text }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}"
    "</{{ call.function.name }}>"
    "{% endfor %}{% endif %}{% endfor %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": r"\A.*\Z",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<(?P<name>search|python)>",
            "close_pattern": r"</(?:search|python)>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": {"text": "{content}"}}},
        },
        "content": {"content": "text"},
    },
}


@dataclass(frozen=True)
class Job:
    """What both sides do: `prompts` groups of `group` trajectories per step."""

    tasks: Sequence[Task]
    prompts: int
    group: int
    max_tokens: int
    max_calls: int
    steps: int
    lr: float
    micro_rows: int

    def batch(self, step: int) -> Sequence[Task]:
        """The tasks of step `step`, from 0."""
        return self.tasks[step * self.prompts : (step + 1) * self.prompts]


class Tools:
    """Our tools as the plain functions that TRL calls, with a count of the calls."""

    def __init__(self, toolbox: ToolBox) -> None:
        self.toolbox = toolbox
        self.calls = 0
        self._loop = asyncio.new_event_loop()

    def _call(self, name: str, text: str) -> str:
        context = ToolContext("trl", f"call{self.calls}", self.calls, 0)
        self.calls += 1
        result = self._loop.run_until_complete(self.toolbox.call(name, {ARGUMENTS[name]: text.strip()}, context))
        return result.text.strip()

    def functions(self) -> list[Callable[..., str]]:
        """`search` and `python`."""

        def search(text: str) -> str:
            """Search a collection of texts.

            Args:
                text: What to look for.
            """
            return self._call("search", text)

        def python(text: str) -> str:
            """Run Python code.

            Args:
                text: The code.
            """
            return self._call("python", text)

        return [search, python]


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer, observed: how long the rollout of a step took and what it sampled."""

    rollout_seconds = 0.0
    sampled = 0
    unique = 0
    computed = 0

    def _generate(self, prompts: list) -> Any:
        started, self.computed = time.perf_counter(), 0
        handle = self.model.register_forward_pre_hook(self._note, with_kwargs=True)
        try:
            output = super()._generate(prompts)
        finally:
            handle.remove()
        prompt_ids, completion_ids, tool_mask = output[:3]
        self.rollout_seconds = time.perf_counter() - started
        self.sampled = sum(map(sum, tool_mask))
        self.unique = sum(map(len, completion_ids)) + sum(map(len, prompt_ids)) // self.num_generations
        return output

    def _note(self, _: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        ids = options["input_ids"] if "input_ids" in options else arguments[0]
        self.computed += ids.numel()


class Turns(TrainerCallback):
    """Times each step of the trainer and hands over to `others` after it."""

    def __init__(self, tools: Tools, job: Job, others: Callable[[int], None]) -> None:
        self.tools, self.job, self.others = tools, job, others
        self.trainer: TimedTrainer | None = None
        self.runs: list[tuple[Run, float]] = []
        self._begun = (0.0, 0.0, 0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begun = (time.perf_counter(), time.process_time(), self.tools.calls)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        wall, cpu, calls = self._begun
        trainer = self.trainer
        assert trainer is not None
        made = self.tools.calls - calls
        run = Run(
            wall=time.perf_counter() - wall,
            cpu=time.process_time() - cpu,
            busy=0.0,
            trajectories=self.job.prompts * self.job.group,
            sampled=trainer.sampled,
            unique=trainer.unique,
            computed=trainer.computed,
            requested=made,
            executed=made,
        )
        self.runs.append((run, trainer.rollout_seconds))
        self.others(len(self.runs) - 1)


def make_trainer(model: Any, tokenizer: Any, dialect: Dialect, tools: Tools, job: Job, out: str, turns: Turns) -> Any:
    """The trainer, ready to train. Raises ValueError if its prompts would not be ours, token by token."""
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    ends = [*dialect.end_tokens, *(tokenizer.convert_tokens_to_ids(text) for text in dialect.stop)]
    model.generation_config.eos_token_id = ends
    check_tokens(tokenizer, dialect, job.tasks[0])
    arguments = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=job.micro_rows,
        gradient_accumulation_steps=job.prompts * job.group // job.micro_rows,
        num_generations=job.group,
        max_completion_length=job.max_tokens,
        max_tool_calling_iterations=job.max_calls,
        max_steps=job.steps,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    by_question = {task.question: task for task in job.tasks}

    def accuracy(prompts: list, completions: list, **_: Any) -> list[float]:
        tasks = [by_question[prompt[0]["content"]] for prompt in prompts]
        answers = [dialect.answer(completion[-1]["content"]) for completion in completions]
        return [best_score(answer, task.answers, kind=task.kind) for answer, task in zip(answers, tasks, strict=True)]

    trainer = TimedTrainer(
        model=model,
        reward_funcs=accuracy,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": _messages(task)} for task in job.tasks]),
        processing_class=tokenizer,
        callbacks=[turns],
        tools=tools.functions(),
    )
    turns.trainer = trainer
    return trainer


def check_tokens(tokenizer: Any, dialect: Dialect, task: Task) -> None:
    """Prompt and result as TRL renders them must be the ids that the policy knows."""
    user = [{"role": "user", "content": task.question}]
    call = {"type": "function", "function": {"name": "search", "arguments": {"text": " x"}}}
    spoken = [*user, {"role": "assistant", "content": "", "tool_calls": [call]}]
    said = [*spoken, {"role": "tool", "name": "search", "content": "Peru | area: 1,285,216"}]
    prompt, before, after = (
        tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False) for messages in (user, spoken, said)
    )
    if prompt != dialect.prompt(task).tolist() or after[: len(before)] != before:
        raise ValueError("TRL's prompt is not the policy's; the two sides would hold different conversations")
    if after[len(before) :] != dialect.result("Peru | area: 1,285,216").tolist():
        raise ValueError("TRL's tool result is not the policy's; the two sides would hold different conversations")


def _messages(task: Task) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in task.messages]
