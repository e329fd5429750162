# Each target sets up what it needs: a Python environment in .venv, the real vLLM in .vllm.

PYTHON ?= python3
VENV ?= .venv
VERSION ?= 0.31.0
BIN := $(VENV)/bin

.PHONY: check test vllm lint docs bench clean

check: $(VENV)/ready
	$(BIN)/pytest checks/

test: $(VENV)/ready
	$(BIN)/pytest tests/

vllm: $(VENV)/ready
	$(BIN)/python -m kvproof.bridge.environment --version $(VERSION)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/ready
	$(BIN)/kvproof docs

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.two_phase_commit
	$(BIN)/python -m benchmarks.scheduler
	$(BIN)/python -m benchmarks.progress

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .vllm
