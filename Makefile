# Each target makes .venv when it is missing and installs again only when the project file changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check docs fuzz format bench wheel

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY) ## train a small CNN on embedded digits, cut it without labels, print the table
	$(BIN)/entrim demo

test: $(READY) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2

SECONDS ?= 60
fuzz: $(READY) ## draw and cut random networks for SECONDS=60, print how many were wrong
	$(BIN)/python -m tests.network.fuzz --seconds $(SECONDS) --seed $$(date +%s)

check: $(READY) ## format, lint, types, layers, unused dependencies, wheel
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports
	$(BIN)/deptry src benchmarks examples
	$(MAKE) wheel

docs: $(READY) ## build the documentation into build/site; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site -d build/doctrees . build/site
	$(BIN)/python docs/site/offline.py build/site

format: $(READY) ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## measure; writes dated Markdown under benchmarks/results/
	$(BIN)/python -m benchmarks.solver
	$(BIN)/python -m benchmarks.network
	$(BIN)/python -m benchmarks.spartan
	$(BIN)/python -m benchmarks.sparsify
	$(BIN)/python -m benchmarks.allocation
	$(BIN)/python -m benchmarks.candidates
	$(BIN)/python -m benchmarks.timing
	$(BIN)/python -m benchmarks.distill
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.export
	$(BIN)/python -m benchmarks.stop
	$(BIN)/python -m benchmarks.readings
	$(BIN)/python -m benchmarks.paper

wheel: $(READY) ## build the wheel, install it into an empty folder and import it from there
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist .
	$(BIN)/pip install --quiet --no-deps --target dist/installed dist/*.whl
	cd dist/installed && PYTHONPATH=. ../../$(BIN)/python -c "import entrim; print(entrim.__version__, entrim.__file__); assert 'installed' in entrim.__file__"
