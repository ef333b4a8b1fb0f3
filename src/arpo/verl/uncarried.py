"""What of our configuration verl has no place for: refused where the algorithm would change, else listed with the
reason.

The line between the two: a setting is refused if verl would train something else than `arpo train` does, or for longer
than was allowed, and nothing in the translated command could show it. It is listed if it concerns speed, memory,
where things run, or another command of ours.
"""

from collections.abc import Iterator

from arpo.config.schema import Config
from arpo.credit.settings import AepoCredit, CountingCredit, ReinforcePlusPlusCredit, TreeCredit
from arpo.engine.settings import VllmSettings
from arpo.learn.settings import ClippedLoss, GspoLoss
from arpo.verl.actor import MODES
from arpo.verl.overrides import Uncarried, is_stock
from arpo.verl.sampler import wants_top_k


def refusals(config: Config, gpus: int) -> list[str]:
    """One line per key that would change the algorithm in silence. `gpus`: of all nodes together."""
    return [*_loss(config), *_credit(config), *_limits(config), *_model(config), *_batches(config, gpus)]


def _loss(config: Config) -> Iterator[str]:
    loss = config.loss
    if loss.type not in MODES:
        yield f'loss.type = "{loss.type}" is no loss of verl\'s; it has {", ".join(MODES)}'
    if isinstance(loss, ClippedLoss) and loss.max_ratio is not None:
        yield f"loss.max_ratio = {loss.max_ratio}: verl truncates no ratio; leave it out"
    if isinstance(loss, GspoLoss) and loss.dual_clip is not None:
        yield f"loss.dual_clip = {loss.dual_clip}: verl's GSPO has no dual clip; leave it out"
    if weighs(config):
        for name in ("kl", "entropy_bonus"):
            if getattr(loss, name) > 0:
                yield (
                    f'loss.{name} = {getattr(loss, name)} with credit.type = "{config.credit.type}": the credit weighs '
                    "tokens, and verl would count this term at weight 1 on every copy of a shared token; set "
                    f"loss.{name} = 0, or credit that counts copies"
                )


def weighs(config: Config) -> bool:
    """Whether a copy of a shared token may weigh something else than 1."""
    credit = config.credit
    return isinstance(credit, TreeCredit) or (isinstance(credit, CountingCredit) and credit.shared_prefix_average)


def _credit(config: Config) -> Iterator[str]:
    credit = config.credit
    if isinstance(credit, ReinforcePlusPlusCredit) and credit.kl > 0:
        yield (
            f"credit.kl = {credit.kl}: on verl the advantages of ours are computed without a reference policy; set "
            "credit.kl = 0, or loss.kl"
        )
    if isinstance(credit, AepoCredit) and not wants_top_k(config):
        yield (
            'credit.type = "aepo" scales by the entropy of single tokens, which verl\'s server does not report; set '
            'engine.type = "vllm" and engine.entropy = "topk", or another credit'
        )


def _limits(config: Config) -> Iterator[str]:
    for name in ("max_generated_tokens", "max_seconds"):
        if getattr(config.train, name) is not None:
            yield (
                f"train.{name} = {getattr(config.train, name)}: verl has no such limit and would train on; set "
                f"train.{name} = none and bound train.steps"
            )
    if config.train.eval_every is not None and config.evaluation.agent != "policy":
        yield (
            f'evaluation.agent = "{config.evaluation.agent}": verl validates with the policy\'s own loop; set '
            'evaluation.agent = "policy" or train.eval_every = none'
        )
    if config.rollout.temperature <= 0:
        yield f"rollout.temperature = {config.rollout.temperature}: training needs a positive temperature"
    if config.rollout.top_p < 1:
        yield (
            f"rollout.top_p = {config.rollout.top_p}: verl's server would report log-probs of what top_p leaves, and "
            "the importance ratio divides by those of the whole distribution; set rollout.top_p = 1"
        )


def _model(config: Config) -> Iterator[str]:
    model = config.model
    if model.path == "smollm2":
        yield (
            'model.path = "smollm2" is a GGUF file in a package; verl reads folders in Hugging Face layout: write one '
            "with save_pretrained, or with `arpo export` from a run"
        )
    if model.dtype == "float64":
        yield 'model.dtype = "float64": verl trains in float32, bfloat16 or float16'
    if model.device != "auto" and not model.device.startswith("cuda"):
        yield f'model.device = "{model.device}": verl trains on GPUs; set model.device = "auto"'
    if config.engine.type == "tinker":
        yield (
            'engine.type = "tinker": its server trains an adapter of its own; for verl set engine.type = "local", and '
            "model.lora.rank for an adapter"
        )
    if model.lora is not None and not float(model.lora.alpha).is_integer():
        yield f"model.lora.alpha = {model.lora.alpha}: verl takes a whole number"


def _batches(config: Config, gpus: int) -> Iterator[str]:
    rows = (config.train.mini_batch or config.train.prompts) * config.rollout.total
    if rows % gpus:
        yield (
            f"train.mini_batch x rollout.total = {rows} trajectories do not share out over {gpus} GPUs; choose a "
            "multiple, or other --gpus and --nodes"
        )


def uncarried(config: Config) -> tuple[Uncarried, ...]:
    """Everything else that stays behind, with the reason."""
    return tuple(Uncarried(keys, why) for keys, why in (*_engine(config), *_training(config), *_elsewhere()))


def _engine(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    engine = config.engine
    if not wants_top_k(config):
        why = "verl's server reports the sampled token's log-prob alone, so an entropy is the mean of -log p over"
        ask = 'entropy.window tokens; engine.type = "vllm" with engine.entropy = "topk" asks for top-K log-probs'
        names = ("type", "entropy") if "entropy" in type(engine).model_fields else ("type",)
        yield tuple(f"engine.{name}" for name in names), f"{why} {ask}"
    carried = {"type", "entropy", "max_context", *(("options", "top_k") if isinstance(engine, VllmSettings) else ())}
    kept_back = tuple(f"engine.{name}" for name in type(engine).model_fields if name not in carried)
    if isinstance(engine, VllmSettings) and not wants_top_k(config):
        kept_back += ("engine.top_k",)
    if kept_back:
        yield kept_back, f'they are of the engine "{engine.type}"; verl samples from vLLM servers of its own'
    yield ("model.device", "train.processes", "train.sharded"), "verl starts, places and shards by itself (FSDP2)"
    if config.model.lora is not None:
        yield ("model.lora.dropout",), "it is 0 there as here"


def _training(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    optim, train, total = config.optim, config.train, config.rollout.total
    if is_stock(config) and total > 1:
        shorter = f"so all advantages are {((total - 1) / total) ** 0.5:.3f} times ours"
        yield ("credit.epsilon",), f"verl's GRPO divides by the standard deviation of a sample (n - 1), {shorter}"
    if optim.packing == "tree":
        yield ("optim.packing",), "verl computes a shared prefix once per leaf: the same gradient, without the saving"
    if train.mini_batch is not None and (optim.warmup_steps or optim.schedule == "cosine"):
        yield ("optim.schedule", "optim.warmup_steps"), "verl moves the rate once per step, not once per mini-batch"
    if optim.weight_decay:
        yield ("optim.weight_decay",), "verl decays every weight, ours matrices alone (norms and biases are left out)"
    if config.loss.kl > 0:
        yield ("loss.kl",), "verl holds the estimate of one token at 10, beyond which it has no gradient"
    if config.loss.mismatch_reject is not None:
        yield ("loss.mismatch_reject",), "verl goes on counting rejected trajectories in the averages"
    if config.loss.aggregation != "constant":
        yield ("loss.length",), 'read with loss.aggregation = "constant" alone'
    if is_stock(config) and config.loss.aggregation == "token_mean":
        yield ("loss.aggregation",), "verl counts the tokens of groups without signal, too; ours leaves them out"
    if not is_stock(config) and train.mini_batch not in (None, train.prompts):
        why = "weights are shared out over the whole step, since verl alone knows what meets in a mini-batch"
        yield ("train.mini_batch",), why
    yield ("train.max_rounds",), "with train.resample_flat verl draws until the batch is full"
    yield ("rollout.concurrency",), "every agent worker of verl's grows all the trees that it is given at once"
    yield ("run.seed",), "verl draws the order of the tasks, and its servers the tokens: other ones from the same seed"


def _elsewhere() -> Iterator[tuple[tuple[str, ...], str]]:
    kept = ("evaluation.k", "evaluation.agent", "evaluation.metrics", "evaluation.judge", "evaluation.prices")
    yield kept, "they are of `arpo eval`"
    yield ("sft",), "it is of `arpo sft`"
