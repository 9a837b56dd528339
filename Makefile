# Each target makes .venv when it is missing and installs again only when the project file changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench wheel

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY) ## choose pixels of the embedded digits, print the table
	$(BIN)/python examples/digits.py

test: $(READY) ## run the tests
	$(BIN)/pytest --numprocesses 2

check: $(READY) ## format, lint, types, layers, unused dependencies, wheel
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(MAKE) wheel

format: $(READY) ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## measure; writes dated Markdown under benchmarks/results/
	$(BIN)/python -m benchmarks.solver
	$(BIN)/python -m benchmarks.network

wheel: $(READY) ## build the wheel and import it from an empty folder
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist .
	cd dist && ../$(BIN)/python -I -c "import sys, glob; sys.path.insert(0, glob.glob('*.whl')[0]); import entrim; assert '.whl' in entrim.__file__, entrim.__file__"
