# Markpost. `make run` serves mail, `make test` runs everything the tests need; both set up what they need first.

VENV    := .venv
PYTHON  := $(VENV)/bin/python
STAMP   := $(VENV)/.ready

# Many tests start the program: without kept bytecode, each of them would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test lint bench constraints clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt .ci/setup
	.ci/setup $(VENV)
	@touch $@

run: setup
	@$(VENV)/bin/markpost demo

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: lint
	$(VENV)/bin/pytest --numprocesses 2 --dist loadfile $(TESTS)

bench: setup
	$(PYTHON) -m tests.bench

constraints:
	.ci/constraints

clean:
	rm -rf $(VENV) build *.egg-info
