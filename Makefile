# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv first if it is missing.
PYTHON ?= python3
BIN := .venv/bin

# .venv keeps the Python that made it.
ifeq ($(origin PYTHON),command line)
MADE_WITH := $(shell $(BIN)/python -V 2> /dev/null)
$(if $(filter-out $(shell $(PYTHON) -V),$(MADE_WITH)),$(error .venv was made with $(MADE_WITH): run `make clean`, then this command again))
endif

# Installed without bytecode, which the first import of a file leaves: without it every process of the tests would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo docs bench gpu real test test-slow test-oldest test-page style quality crosscheck clean

help:  ## Say what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

demo: .venv/installed  ## Repair a small retriever end to end; results in runs/demo. No key, GPU or download.
	$(BIN)/repair-hf demo

docs: .venv/ready  ## Build the documentation into build/docs. Warnings are errors.
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

test: .venv/ready  ## Run the tests, or those of one folder: make test ROOM=training. No network, GPU or key.
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -rs --durations=25 tests/$(ROOM)

test-slow: .venv/ready  ## Run the slow tests too, of many minutes; before a release.
	$(BIN)/python -m pytest -m 'not gpu' --timeout 3600

test-oldest: .venv-oldest/ready  ## Run the tests with the oldest releases that are supported; an environment of its own, of some GB.
	.venv-oldest/bin/python -m pytest -W default -n 2 --dist loadfile --no-loadscope-reorder

test-page: .venv-page/ready  ## Open every page in Chromium, drive the one of `repair-hf annotate` and test trackers; an environment of its own.
	.venv-page/bin/python -m pytest -W default -rs tests/analysis/people tests/training/test_report.py

crosscheck: .venv-crosscheck/ready  ## Hold our numbers and exports to CLIP_benchmark and open_clip, and ask a small LLM on llama.cpp; an environment of its own, of some GB.
	.venv-crosscheck/bin/python -m pytest -W default -rs -m 'not gpu' --timeout 3600 tests/crosscheck tests/benchmarks tests/encoder/test_sentence_encoder.py

gpu: .venv/ready  ## Run the tests that need an NVIDIA GPU; without one, say so in one line.
	@if [ "$$REPAIR_HF_GPU_TESTS" = cpu ] || $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	then $(BIN)/python -m pytest -rs -m gpu tests/gpu; else echo 'skipped: torch finds no NVIDIA GPU'; fi

real: .venv/ready  ## Hold us to a real CLIP, real photographs and a real LLM (20 failures, $0.10 at most); skips what is missing.
	$(BIN)/python benchmarks/real.py

bench: .venv/ready  ## Time mining, embedding, evaluation, training, the LLM client and its replay at small sizes.
	for part in mine embed evaluate train llm replay; do echo "$$part"; $(BIN)/python benchmarks/$$part.py || exit 1; done

style: .venv/ready  ## Format the code and fix what ruff can fix.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

quality: .venv/ready  ## Check style, line lengths and types; changes nothing.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## Remove .venv and caches; runs/ stays.
	rm -rf .venv .venv-oldest .venv-page .venv-crosscheck .pytest_cache .ruff_cache build *.egg-info

# Written last, so a broken installation is begun anew. What is imported gets compiled then: to compile all takes two minutes.
.venv-oldest/ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install -q --no-compile -c constraints-oldest.txt -e '.[dev]'
	@touch $@

.venv-page/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-page
	grep -v '^pillow==' constraints.txt > .venv-page/constraints.txt  # trackio wants Pillow below 13
	.venv-page/bin/pip install -q --no-compile -c .venv-page/constraints.txt -e '.[dev]' playwright trackio
	@touch $@

.venv-crosscheck/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-crosscheck
	sed 's/^torch==.*/torch==2.15.0\ntorchvision==0.29.2/' constraints.txt > .venv-crosscheck/constraints.txt  # PyPI's torchvision wants PyPI's torch
	.venv-crosscheck/bin/pip install -q --no-compile -c .venv-crosscheck/constraints.txt -e '.[dev,crosscheck]'
	@touch $@

# The demo needs none of the tools of development, which are a third of the installation.
.venv/installed: PACKAGE := .
.venv/ready: PACKAGE := .[dev]
.venv/installed .venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "repair-hf needs Python 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '$(PACKAGE)'
	@touch .venv/installed $@
