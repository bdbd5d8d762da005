# Everything runs from .venv, which is made on first use. `make help` lists what there is.

MODEL ?= qwen2.5-coder-1.5b
PORT ?= 8000
NODES ?= 3
# Further flags of `shoal serve`, for example ARGS="--ctx 8192 --threads 4".
ARGS ?=
# Of `make soak`; SOAK_ARGS="--kill-every 60" kills workers meanwhile. SEEDS: of the fault tests.
MINUTES ?= 60
SEEDS ?= 50000
SOAK_MODEL ?= gemma3-270m
SOAK_ARGS ?=
# Two processes: the suite waits for real Ray clusters and workers a good part of its time.
PYTEST ?= .venv/bin/pytest -n 2 --dist loadfile

# The first that runs and is of a version that Shoal and Ray know.
IS_FIT = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(or $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c '$(IS_FIT)' 2>/dev/null && echo $$python && break; done),python3)
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: studies help serve test test-all soak soak-seeds prove-fault-tests check clean

help:
	@echo "make serve      fetch a small chat model, serve it on $(NODES) local nodes at http://127.0.0.1:$(PORT)"
	@echo "                MODEL=/path/to/file.gguf PORT=9000 NODES=2 make serve    serves a file of yours"
	@echo "make test       the everyday tests"
	@echo "make test-all   also those that need large models or minutes"
	@echo "make soak       an hour of mixed load: memory, latency and stuck sessions (MINUTES=5 make soak);"
	@echo "                then $(SEEDS) seeds of the fault tests (SEEDS=2000; by themselves: make soak-seeds)"
	@echo "make check      format, lint, types, import rules"
	@echo "make studies    compute the pages of docs/studies again; NAME=consoles only that one"
	@echo "make clean      remove the environment and caches of tools (models and slices stay)"

serve: .venv/run.stamp
	@exec $(BIN)/shoal serve "$(MODEL)" --listen "127.0.0.1:$(PORT)" --nodes "$(NODES)" $(ARGS)

test: .venv/dev.stamp
	$(PYTEST) -m "not slow"

test-all: .venv/dev.stamp
	$(PYTEST)

# Breaks each rule of recovery in turn, in a copy, and wants to see a fault test fail. Takes minutes.
prove-fault-tests: .venv/dev.stamp
	$(BIN)/python tests/fault/mutations.py

soak: .venv/dev.stamp
	$(BIN)/python -m benchmarks.soak "$(SOAK_MODEL)" --minutes $(MINUTES) $(SOAK_ARGS)
	$(MAKE) --no-print-directory soak-seeds

soak-seeds: .venv/dev.stamp
	$(BIN)/python -m tests.fault.many_seeds --seeds $(SEEDS)

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

studies: .venv/dev.stamp
	$(BIN)/python -m shoal.studies $(NAME)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# ---------------------------------------------------------------- the environment

# A stamp is as new as the pins it was installed from; changing those installs again.
.venv/run.stamp: pyproject.toml constraints.txt $(wildcard shoal/engine/native/*) | .venv/bin/pip
	@echo "Installing Shoal. The first time this compiles llama.cpp: some minutes."
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt $(wildcard shoal/engine/native/*) | .venv/bin/pip
	@echo "Installing Shoal and its tools. The first time this compiles llama.cpp: some minutes."
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ .venv/run.stamp

.venv/bin/pip:
	@.ci/requirements "$(PYTHON)"
	"$(PYTHON)" -m venv .venv
