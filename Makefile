# Markpost. `make run` serves mail, `make unit` runs the tests that start no process, `make test` lints and runs all tests
# (some: TESTS=tests/adapter/cli), `make lab` runs the long tests, `make bench` measures (BENCH=--quick for a first
# look). All of them set up what they need first.

VENV    := .venv
PYTHON  := $(VENV)/bin/python
STAMP   := $(VENV)/.ready

# Many tests start the program: without cached bytecode, each start would compile the whole product.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run unit test pytest lint lab bench constraints clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt .ci/setup
	@echo "markpost: setting up $(VENV); this takes a minute or two, and happens once"
	@.ci/setup $(VENV)

run: setup
	@$(VENV)/bin/markpost demo

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# No process, no Spark, no Debian program, and a fifth of the examples of each property: under two minutes on two cores.
unit: setup
	MARKPOST_EXAMPLES=0.2 $(VENV)/bin/pytest -q --numprocesses 3 --dist loadfile --no-loadscope-reorder --ignore tests/system tests

# Lint and tests run in parallel: the first tests mostly wait for other programs.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

# One process more than CI has cores, for the same reason. tests/conftest.py sets order and distribution.
pytest: setup
	$(VENV)/bin/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(TESTS)

# Tests that take too long for every change, or need a browser (Debian: roundcube-core roundcube-sqlite3 php-cli php-sqlite3
# php-mbstring php-intl chromium chromium-driver).
lab: setup
	$(VENV)/bin/pytest tests/system/lab
	MARKPOST_KILLS=places HYPOTHESIS_PROFILE=long $(VENV)/bin/pytest --numprocesses 2 --dist loadfile \
	    --no-loadscope-reorder --timeout 3600 tests/system tests/adapter tests/protocol

bench: setup
	$(PYTHON) -m tests.bench $(BENCH)

constraints:
	.ci/constraints

clean:
	rm -rf $(VENV) build *.egg-info
