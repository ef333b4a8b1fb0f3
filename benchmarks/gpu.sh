#!/usr/bin/env bash
# The policy update on one CUDA GPU, within ten minutes: is it exact there, and how much does it gain?
#
#   benchmarks/gpu.sh [PYTHON]         a Python with CUDA and arpo's dependencies; default: .venv, made if missing
#   ARPO_GPU_TINY=1 benchmarks/gpu.sh  the same path with tiny sizes on the CPU, in two minutes
#
# ARPO_GPU_OUT: where results go (default: runs/gpu). ARPO_GPU_SIZE: 0.5B (default) or 1.5B.
# ARPO_GPU_MICRO: tokens of one forward pass (default: by the GPU's memory).
set -euo pipefail
cd "$(dirname "$0")/.."

out="${ARPO_GPU_OUT:-runs/gpu}"
python="${1:-}"
if [ -z "$python" ]; then
    [ -x .venv/bin/python ] || make install
    python=.venv/bin/python
fi
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1

if [ -n "${ARPO_GPU_TINY:-}" ]; then
    device=cpu size=tiny dtype=float32 shapes=60+160@1/4,60+160@1/2,60+160@3/4 group=2+2
    micro="${ARPO_GPU_MICRO:-4096}"
else
    device=cuda size="${ARPO_GPU_SIZE:-0.5B}" dtype=bfloat16 group=8+8
    shapes=1500+4000@1/4,1500+4000@1/2,1500+4000@3/4
    micro="${ARPO_GPU_MICRO:-$("$python" benchmarks/gpu_check.py budget --size "$size")}"
fi

echo "== tree against padded rows in float32 on $device"
"$python" benchmarks/gpu_check.py equal --device "$device" --size "$size"

echo "== speed in $dtype, random weights in the shape of Qwen2.5-$size, $micro tokens a pass"
"$python" benchmarks/gpu_check.py make "$out/model" --size "$size"
"$python" -m arpo bench update --model "$out/model" --shape "$shapes" --group "$group" --rounds 3 \
    --device "$device" --dtype "$dtype" --micro-tokens "$micro" --json "$out/update.json"
rm -r "$out/model"
"$python" benchmarks/gpu_check.py verdict "$out/update.json"
