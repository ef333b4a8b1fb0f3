"""Two real processes against one: the same update, under replicas and under shards, and no process left waiting."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import two_processes
from two_processes import Case

from arpo.credit import Credit, assign
from arpo.credit.settings import credit_settings
from arpo.engine.lora import attach
from arpo.engine.settings import LoraSettings
from arpo.errors import ConfigError
from arpo.learn.devices import check, deal, devices_of, fingerprint
from arpo.learn.packing import Pack, packs
from arpo.learn.rows import all_rows, flatten
from arpo.learn.settings import OptimSettings, loss_settings
from arpo.learn.update import Learner
from arpo.tree import RolloutTree

Maker = Callable[..., Any]
Results = dict[str, list[dict[str, Any]]]
"""Per case: what one process gives, and what each of the two gives."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT_S = 200
"""For all cases together; they take a tenth of it on an idle machine."""
EQUAL = ("ddp-tree", "ddp-padded", "fsdp-tree", "fsdp-padded", "fsdp-reference", "fsdp-lora")
EXACT = ("ddp-float64", "fsdp-float64")
BROKEN = ("ddp-broken", "fsdp-broken")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, cases: list[Case]) -> Results:
    """All cases, once in this process and once in two others."""
    folder = tmp_path_factory.mktemp("world")
    torch.save(cases, folder / "cases.pt")
    environment = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    world = [_process(folder, environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    (folder / "alone").mkdir()
    alone = {case.name: two_processes.run(case, None, folder / "alone") for case in cases}
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in world]
    finally:
        for process in world:
            process.kill()
    assert [process.returncode for process in world] == [0, 0], "\n".join(said)
    for case in cases:
        if case.resume_at is not None:
            alone[case.name]["taken up"] = two_processes.taken_up(case, folder)
    files = {case.name: [folder / f"{case.name}.{rank}.pt" for rank in range(2)] for case in cases}
    return {name: [alone[name], *(torch.load(f, weights_only=False) for f in own)] for name, own in files.items()}


def _process(folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, two_processes.__file__, str(folder)], env=environment, **pipe)


@pytest.fixture(scope="module")
def cases(tiny: Maker, forked: Maker) -> list[Case]:
    def saved(model: Any) -> Any:
        return model.config, {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def batches(count: int = 3) -> list[tuple[list[RolloutTree], list[Credit]]]:
        made = [[forked((1.0, 0.0, 0.5), seed=10 * update + i) for i in range(count)] for update in range(2)]
        return [(trees, [assign(tree, credit_settings()) for tree in trees]) for trees in made]

    def case(
        name: str, *, dtype: torch.dtype = torch.float32, optim: Any = None, loss: Any = None, **rest: Any
    ) -> Case:
        settings = OptimSettings(**{"lr": 0.01, "micro_tokens": 30, "max_grad_norm": 0.5} | (optim or {}))
        policy = rest.pop("policy", None) or tiny(dtype=dtype)
        kind = name.split("-")[0]
        own = {"batches": batches()} | rest
        return Case(name, kind, saved(policy), loss or loss_settings(), settings, **own)

    adapted = tiny()
    attach(adapted, LoraSettings(rank=4), base="tiny", seed=3)
    torch.manual_seed(6)
    for name, parameter in adapted.named_parameters():
        if ".lora_B." in name:
            parameter.data += torch.randn_like(parameter) * 0.1
    kl = loss_settings(kl=0.1)
    bad = batches()
    bad[0] = (_poisoned(bad[0][0]), bad[0][1])
    return [
        case("ddp-tree", optim={"gradient_checkpointing": True}),
        case("ddp-padded", optim={"packing": "padded"}, loss=loss_settings("gspo", kl=0.1), reference=saved(tiny(1))),
        case("ddp-float64", dtype=torch.float64),
        case("ddp-mixed", mixed_precision="bf16"),
        case("ddp-broken", batches=bad),
        case("ddp-different", different=True),
        case("fsdp-tree", optim={"gradient_checkpointing": True}, chunk=4 * 23),
        case("fsdp-padded", optim={"packing": "padded"}, resume_at=1),
        case("fsdp-float64", dtype=torch.float64, chunk=4 * 23),
        case("fsdp-reference", loss=loss_settings(kl=0.1, old="trainer"), reference=saved(tiny(1))),
        case("fsdp-lora", policy=adapted, adapter=True, loss=kl),
        case("fsdp-half", dtype=torch.bfloat16, optim={"lr": 1e-5}, resume_at=1),
        case("fsdp-mixed", mixed_precision="bf16"),
        case("fsdp-broken", batches=bad),
    ]


def _poisoned(trees: Sequence[RolloutTree]) -> list[RolloutTree]:
    """The last tree's first sampled segment has log-probs that are no numbers."""
    bad = trees[-1]
    segments = list(bad.segments)
    segments[1] = replace(segments[1], logprobs=np.full(len(segments[1]), np.nan, np.float32))
    return [*trees[:-1], replace(bad, segments=tuple(segments))]


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative, of all weights as one vector."""
    a, b = (torch.cat([w[name].double().flatten() for name in sorted(one)]) for w in (one, other))
    return float((a - b).norm() / a.norm())


def check_equal(alone: dict[str, Any], own: dict[str, Any], limit: float) -> None:
    assert not own["errors"]
    assert len(own["metrics"]) == len(alone["metrics"]) == 2
    for ours, theirs in zip(own["metrics"], alone["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=max(limit, 1e-6) * 10, abs=max(limit, 1e-9) * 10)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=limit * 10)
    assert distance(alone["weights"], own["weights"]) < limit
    for ours, theirs in zip(own["logprobs"], alone["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_make_the_update_of_one(results: Results, name: str) -> None:
    alone, *world = results[name]
    assert alone["metrics"][0]["passes"] % 2, "an odd number: one process computes a pass that weighs nothing"
    assert alone["metrics"][0]["grad_norm"] > 0.5, "clipping acts, so the step depends on the norm over all shards"
    for own in world[: 1 if name.startswith("fsdp") else 2]:
        check_equal(alone, own, 1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_in_double_precision_to_ten_digits(results: Results, name: str) -> None:
    alone, first, _ = results[name]
    check_equal(alone, first, 1e-10)


def test_all_processes_report_the_same(results: Results) -> None:
    for name in (*EQUAL, *EXACT):
        _, first, second = results[name]
        assert first["metrics"] == second["metrics"]
        assert all(np.array_equal(a, b) for a, b in zip(first["logprobs"], second["logprobs"], strict=True))


def test_shards_are_halves(results: Results) -> None:
    for name in ("fsdp-tree", "fsdp-float64", "fsdp-half"):
        alone, *world = results[name]
        for what, whole in (("own", alone["size"]), ("own_state", 2 * alone["size"])):
            shares = [own[what] for own in world]
            assert sum(shares) == whole, "each weight, and its two moments, in one process and no other"
            assert shares[0] == pytest.approx(shares[1], rel=0.1)
    alone, *world = results["fsdp-reference"]
    assert sum(own["own_reference"] for own in world) == alone["own_reference"] == alone["size"]
    _, *world = results["ddp-tree"]
    assert all(own["own"] == own["size"] for own in world)


def test_half_precision_shards_have_float32_masters_that_survive_a_checkpoint(results: Results) -> None:
    alone, first, _ = results["fsdp-half"]
    assert not first["errors"]
    assert distance(alone["weights"], first["weights"]) < 1e-3
    assert first["metrics"][1]["loss"] == pytest.approx(alone["metrics"][1]["loss"], rel=0.05)


@pytest.mark.parametrize("name", ["fsdp-padded", "fsdp-half"])
def test_what_two_processes_save_one_takes_up(results: Results, name: str) -> None:
    alone, first, _ = results[name]
    limit = 1e-5 if name == "fsdp-padded" else 1e-3
    assert distance(alone["taken up"], first["weights"]) < limit
    assert distance(alone["taken up"], alone["weights"]) < limit


@pytest.mark.parametrize("name", ["ddp-mixed", "fsdp-mixed"])
def test_mixed_precision_leaves_log_probs_alone(results: Results, name: str) -> None:
    alone, first, _ = results[name]
    assert not first["errors"]
    assert first["weights"]["model.norm.weight"].dtype == torch.float32
    logp, ours = np.concatenate(alone["logprobs"]), np.concatenate(first["logprobs"])
    assert 1e-3 < np.abs(logp - ours).mean() < 0.1
    rounded = torch.from_numpy(ours).bfloat16().float().numpy()
    assert (rounded != ours).mean() > 0.5, "they are not rounded to bfloat16"


@pytest.mark.parametrize("name", BROKEN)
def test_a_loss_that_is_not_finite_in_one_process_stops_all(results: Results, name: str) -> None:
    alone, *world = results[name]
    for own in world:
        assert [kind for kind, _ in own["errors"]] == ["DivergenceError"]
        assert own["errors"] == alone["errors"], "both name the task, whoever computed it"
        assert "task-2)" in own["errors"][0][1]
        assert len(own["metrics"]) == 1
    good, first = alone["metrics"][0], world[0]["metrics"][0]
    assert first == pytest.approx(good, rel=1e-4), "the update after it is as if nothing had been"
    assert distance(alone["weights"], world[0]["weights"]) < 1e-5


def test_different_mini_batches_are_an_error_and_no_hang(results: Results) -> None:
    for own in results["ddp-different"][1:]:
        assert {kind for kind, _ in own["errors"]} == {"DataError"}
        assert "whole mini-batch" in own["errors"][0][1]


# --- without processes -----------------------------------------------------------------------------------------------


def made(forked: Maker, budget: int, count: int = 3) -> list[Pack]:
    flats = [flatten(forked(seed=seed)) for seed in range(count)]
    rows = [row for i, flat in enumerate(flats) for row in all_rows(i, flat)]
    weights, old = [row.weight_p for row in rows], [flat.logp_N for flat in flats]
    return packs(flats, rows, weights, old, budget=budget, packing="sequence")


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 20])
def test_packs_are_dealt_evenly_and_each_weighs_once(forked: Maker, processes: int) -> None:
    packs = made(forked, 12)
    assert len(packs) == 9
    hands = deal(packs, processes)
    assert {len(hand) for hand in hands} == {-(-len(packs) // processes)}
    loud = [pack for hand in hands for pack in hand if pack.coefficient_P.any()]
    assert {id(pack) for pack in loud} == {id(pack) for pack in packs}
    assert len(loud) == len(packs)
    loads = [sum(pack.tokens for pack in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(pack.tokens for pack in packs)
    smallest = min(pack.tokens for pack in packs)
    assert all(pack.tokens == smallest for hand in hands for pack in hand if not pack.coefficient_P.any())


def test_nothing_is_dealt_of_nothing() -> None:
    assert deal([], 2) == [[], []]


def test_a_fingerprint_knows_the_tokens_and_whose_they_are(forked: Maker) -> None:
    assert fingerprint(made(forked, 50)) == fingerprint(made(forked, 50))
    marks = {fingerprint(made(forked, budget, count)) for budget, count in ((12, 3), (50, 3), (50, 2))}
    assert len(marks) == 3


def plugin(cpu_offload: bool = False, **changed: Any) -> Any:
    """accelerate's own, so that its names are held to. Changed afterwards: it writes options to the environment."""
    from accelerate import FullyShardedDataParallelPlugin

    made = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=cpu_offload, cpu_ram_efficient_loading=False)
    for name, value in changed.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def accelerator(kind: str = "MULTI_GPU", **options: Any) -> Any:
    facts = {
        "distributed_type": SimpleNamespace(value=kind),
        "num_processes": 2,
        "mixed_precision": "no",
        "parallelism_config": None,
        "is_fsdp2": True,
        "state": SimpleNamespace(fsdp_plugin=options.pop("plugin", None)),
    }
    return SimpleNamespace(**facts | options)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (accelerator("DEEPSPEED"), "DEEPSPEED"),
        (accelerator("FSDP", is_fsdp2=False), "fsdp_version = 2"),
        (accelerator(mixed_precision="fp16"), "bf16"),
        (accelerator(parallelism_config=object()), "parallelism_config"),
        (accelerator("FSDP", plugin=plugin(activation_checkpointing=True)), "optim.gradient_checkpointing"),
        (accelerator("FSDP", plugin=plugin(cpu_ram_efficient_loading=True)), "cpu_ram_efficient_loading = false"),
        (accelerator("FSDP", plugin=plugin(cpu_offload=True)), "cpu_offload"),
    ],
)
def test_what_would_not_happen_is_refused(given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        devices_of(given)


def test_the_ordinary_is_not_refused() -> None:
    for given in (accelerator(), accelerator("FSDP", plugin=plugin()), accelerator("MULTI_CPU"), accelerator("NO")):
        check(given)


def test_an_accelerator_of_one_process_changes_nothing(tiny: Maker, forked: Maker) -> None:
    one = accelerator("NO", num_processes=1, device=torch.device("cpu"))
    trees = [forked((1.0, 0.0, 0.5), seed=seed) for seed in range(2)]
    credits = [assign(tree, credit_settings()) for tree in trees]
    found = []
    for given in (None, one):
        learner = Learner(tiny(), loss_settings(), OptimSettings(lr=0.01), total_updates=1, accelerator=given)
        metrics = learner.update(trees, credits)
        found.append((metrics, torch.cat([p.detach().flatten() for p in learner.model.parameters()])))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_the_precision_of_one_process_is_the_accelerators(tiny: Maker, forked: Maker) -> None:
    one = accelerator("NO", num_processes=1, device=torch.device("cpu"), mixed_precision="bf16")
    tree = forked(seed=1)
    given, asked = (
        Learner(tiny(), loss_settings(), OptimSettings(autocast=autocast), total_updates=1, accelerator=which)
        for autocast, which in (("none", one), ("bf16", None))
    )
    assert np.array_equal(given.logprobs([tree])[0], asked.logprobs([tree])[0])
    plain = Learner(tiny(), loss_settings(), OptimSettings(), total_updates=1)
    assert not np.array_equal(given.logprobs([tree])[0], plain.logprobs([tree])[0])
