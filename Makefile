# Two commands are all: `make tune` runs the main job, `make test` the tests. Both make their own environment first.
PYTHON ?= $(shell for python in python3.11 python3; do $$python -c '' 2> /dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PINS := pyproject.toml constraints.txt

.PHONY: help tune test pytest lint slow chaos browser envpool cuda bench docs docs-test pictures clean
.DELETE_ON_ERROR:
# Studies and tests start many interpreters: none should compile the package again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 19

tune: $(VENV)/.installed  ## tune PPO on CartPole-v1; rerun to resume
	$(BIN)/rekindle tune ppo CartPole-v1 --trials 16 --epochs 1:27 --study cartpole

test: $(VENV)/.installed-test  ## ruff, mypy and the tests
	@$(MAKE) --no-print-directory -j 2 lint pytest

# Tests wait for processes: three workers keep two cores busy.
pytest: $(VENV)/.installed-test  ## the tests
	$(BIN)/pytest -n 3 --dist loadfile

lint: $(VENV)/.installed-test  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

slow: $(VENV)/.installed-test  ## the tests that train until something is learned
	$(BIN)/pytest -n 2 --dist loadfile -m slow

chaos: $(VENV)/.installed-test  ## kill, pause and mislead workers, crash and fill databases; shows figures
	$(BIN)/pytest -m chaos -q

# Chromium itself comes from the system: apt-get install chromium; or CHROMIUM names it. PICTURES=DIR keeps screenshots.
browser: $(VENV)/.installed-browser  ## the tests that open reports and served pages in Chromium
	$(BIN)/pytest -m browser -q

envpool: $(VENV)/.installed-envpool  ## the tests of EnvPool's environments, which bring 800 MB along
	$(BIN)/pytest -m envpool

# PyTorch for CUDA must be there: pip takes it for constraints.txt where no CPU build is offered.
cuda: $(VENV)/.installed-test  ## the tests that need a CUDA device, and the suites of exactness on it
	$(BIN)/pytest -n 4 --device cuda -m "cuda or not (slow or chaos or envpool or browser)" tests/tasks

bench: $(VENV)/.installed-bench  ## speed, side by side with Stable-Baselines3
	$(BIN)/python benchmarks/speed.py

docs: $(VENV)/.installed-docs  ## the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

pictures: $(VENV)/.installed-test  ## the pictures of README, from a study that is trained once; minutes
	$(BIN)/python docs/tools/pictures.py

# `make docs-test SLOW=--slow` also runs the blocks that train for long.
docs-test: $(VENV)/.installed-docs $(VENV)/.installed-test  ## run every code block of the documentation
	$(BIN)/python docs/tools/run_blocks.py $(SLOW)

clean:  ## remove what `make` made; databases stay
	rm -rf $(VENV) build dist rekindle_rl.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each marker file is newer than the pins that its packages were installed from.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The first process that trains compiles kernels, half a minute of work: better now than then.
KERNELS := $(BIN)/python -c 'import rekindle.tasks.compiled.loading as loading; loading.kernels()'

$(VENV)/.installed: $(PINS) | $(VENV)/.made
	$(INSTALL) -e .
	@$(KERNELS)
	@touch $@

# mypy follows no import hooks, which an editable install of a root package is: it is shown a link.
$(VENV)/.installed-test: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[test]'
	@mkdir -p $(VENV)/types && ln -sfn ../.. $(VENV)/types/rekindle
	@$(KERNELS)
	@touch $(VENV)/.installed $@

$(VENV)/.installed-envpool: $(VENV)/.installed-test
	$(INSTALL) -e '.[test,envpool]'
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed-test
	$(INSTALL) -e '.[test,browser]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[docs,digits]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-bench: $(PINS) | $(VENV)/.made
	$(INSTALL) -e '.[box2d,mujoco]' stable-baselines3 sb3-contrib
	@touch $(VENV)/.installed $@
