"""The pieces of benchmarks/gpu.sh: is the update over trees exact on this device, and what did it gain?

    python benchmarks/gpu_check.py equal [--device cuda|cpu] [--size 0.5B|1.5B|tiny]
    python benchmarks/gpu_check.py make FOLDER [--size ...]
    python benchmarks/gpu_check.py budget [--size ...]
    python benchmarks/gpu_check.py verdict ROWS.json

`equal` compares log-probs and gradients of the two forms, tree and padded rows, in float32 with TF32 off, on a few
layers of the named width; exit code 1 if they differ by more than rounding. `make` writes a model of that shape with
random weights. `budget` prints how many tokens of it the GPU's memory holds in one pass. `verdict` reads what `arpo
bench update --json` wrote.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from arpo.bench.measure import Bench
from arpo.bench.shapes import Shape, build_tree, parse_shape

SIZES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151_936},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "vocab_size": 151_936},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 512},
}  # fmt: skip
"""Qwen2.5's published widths, and one for a CPU."""
CHECK_LAYERS, CHECK_TOKENS = 4, 32_768
TOLERANCE = 1e-4
"""Of float32 sums in another order; a wrong mask or a lost copy is off by a thousand times as much."""


def random_model(size: str, **changes: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        **(SIZES[size] | changes), max_position_embeddings=32_768, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def equal(device: str, size: str) -> int:
    """Both forms on one group; 1 if they differ."""
    torch.set_float32_matmul_precision("highest")
    model = random_model(size, num_hidden_layers=min(CHECK_LAYERS, SIZES[size]["num_hidden_layers"])).to(device)
    bench = Bench(model, build_tree(_check_shape(size), SIZES[size]["vocab_size"]), CHECK_TOKENS)
    bench.adopt()
    logps = {form: torch.from_numpy(bench.learners[form].logprobs([bench.tree])[0]) for form in ("tree", "padded")}
    gap = float((logps["tree"] - logps["padded"]).abs().max())
    grads = {form: _gradient(bench, form) for form in ("tree", "padded")}
    worst, name = max((float(_distance(grads["tree"][n], grads["padded"][n])), n) for n in grads["tree"])
    total = float(_distance(*(torch.cat([g.flatten() for g in grads[form].values()]) for form in ("tree", "padded"))))
    attention = bench.learners["tree"].head.form
    print(f"attention {attention}, {bench.tree.sharing:.2f} trajectory tokens per unique token")
    print(f"log-probs: largest difference {gap:.1e}")
    print(f"gradient: relative difference {total:.1e}; of one tensor at most {worst:.1e} ({name})")
    good = max(gap, total) < TOLERANCE
    print("equal" if good else f"NOT EQUAL (tolerance {TOLERANCE:.0e})")
    return 0 if good else 1


def _check_shape(size: str) -> Shape:
    return parse_shape("40+80@mixed", roots=4, total=8) if size == "tiny" else parse_shape("300+600@mixed")


def _gradient(bench: Bench, form: Any) -> dict[str, torch.Tensor]:
    bench.gradient(form)
    return {name: p.grad.clone() for name, p in bench.model.named_parameters() if p.grad is not None}


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one - other).norm() / other.norm()


def make(folder: Path, size: str) -> int:
    """A folder that `load_policy` reads."""
    random_model(size).to(torch.bfloat16).save_pretrained(folder)
    core = Tokenizer(WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w0", eos_token="w1").save_pretrained(folder)
    return 0


def budget(size: str) -> int:
    """Tokens whose activations fill three quarters of the memory: per layer about 60 bytes per hidden unit (float32
    copies in the norms) and 8 per unit of the feed-forward network, at two bytes per number."""
    shape = SIZES[size]
    per_token = shape["num_hidden_layers"] * (60 * shape["hidden_size"] + 8 * shape["intermediate_size"])
    print(int(0.75 * torch.cuda.get_device_properties(0).total_memory / per_token) // 1024 * 1024)
    return 0


def verdict(path: Path) -> int:
    """What the rows say, in a line each."""
    for row in json.loads(path.read_text()):
        print(f"{row['shape']}, rho {row['rho']:.2f}; {row['device_name']}, torch {row['torch']}")
        for form, end in (("padded rows", ""), ("trajectories back to back", "_sequence")):
            speedup, work, share = (
                row[f"{name}{end}"] for name in ("speedup", "flops_ratio", "speedup_over_flops_ratio")
            )
            print(f"    against {form}: {speedup:.2f} times as fast at a work ratio of {work:.2f}, {share:.0%} of it")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("equal", "make", "budget", "verdict"))
    parser.add_argument("path", nargs="?", type=Path, help="make: the folder; verdict: the rows")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=sorted(SIZES), default="0.5B")
    options = parser.parse_args()
    if options.what in ("make", "verdict") and options.path is None:
        parser.error(f"{options.what} needs a path")
    if options.what == "equal":
        return equal(options.device, options.size)
    if options.what == "budget":
        return budget(options.size)
    return make(options.path, options.size) if options.what == "make" else verdict(options.path)


if __name__ == "__main__":
    sys.exit(main())
