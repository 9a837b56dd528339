# Each target creates .venv if it is missing, and installs again only if the project file changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
LIGHT := .venv/.light
# Bytecode is cached even where the environment forbids it: the tests start many processes.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo test slow quick coverage check docs fuzz format reproduce bench wheel

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

# The demo needs a fraction of the packages of the tests.
$(LIGHT): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[cli]"
	touch $(LIGHT)

$(READY): $(LIGHT)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[cli,compare,export,onnx,search,spartan]" --group dev
	touch $(READY)

demo: $(LIGHT) ## train a small CNN on the digits of scikit-learn, prune it without labels, print a table
	$(BIN)/entrim demo

test: $(READY) ## run the tests, except the slow ones
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 -m "not slow"

slow: $(READY) ## run the slow tests: processes that are killed, a compiler, other libraries
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 -m slow

QUICK := tests/regression tests/entropic tests/selection tests/calibration tests/allocation \
  tests/spartan/test_steps.py tests/spartan/test_descent.py \
  $(addprefix tests/surgery/test_, kinds.py plan.py surgery.py)
quick: $(READY) ## run the tests of the numerical results in at most 90 seconds
	OMP_NUM_THREADS=1 $(BIN)/pytest --quiet --numprocesses 2 -m "not slow" $(QUICK) --ignore tests/entropic/test_oracle.py

TESTS ?=
coverage: $(READY) ## run the tests, or TESTS=tests/entropic, and report the executed lines of the package
	mkdir -p build
	COVERAGE_FILE=build/.coverage OMP_NUM_THREADS=1 $(BIN)/pytest --quiet --numprocesses 2 --cov=entrim \
	  --cov-report=term:skip-covered --cov-report=html:build/coverage $(TESTS)

SECONDS ?= 60
fuzz: $(READY) ## generate and prune random networks for SECONDS=60, print the number of wrong results
	$(BIN)/python -m tests.surgery.fuzz --seconds $(SECONDS) --seed $$(date +%s)

check: $(READY) ## format, lint, types, layers, unused dependencies, wheel
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports
	$(BIN)/deptry src examples
	$(BIN)/deptry src experiments examples --non-dev-dependency-groups experiments
	$(MAKE) wheel

docs: $(READY) ## build the documentation into build/site; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site -d build/doctrees . build/site
	$(BIN)/python docs/site/offline.py build/site

format: $(READY) ## format the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

TABLE ?= lenet-conv
ARGS ?=
reproduce: $(READY) ## run a table of the paper again: TABLE=lenet-conv ARGS="--seeds 0 1 2"
	$(BIN)/python -m experiments reproduce $(TABLE) $(ARGS)

BENCHMARKS ?= solver network spartan sparsify allocation candidates timing scale distill accuracy search export stop readings paper
bench: $(READY) ## measure BENCHMARKS="solver network"; writes dated Markdown under experiments/results/
	for name in $(BENCHMARKS); do $(BIN)/python -m experiments bench $$name || exit 1; done

wheel: $(READY) ## build the wheel, install it into an empty folder and import it from there
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist .
	$(BIN)/pip install --quiet --no-deps --target dist/installed dist/*.whl
	cd dist/installed && PYTHONPATH=. ../../$(BIN)/python -c "import entrim; print(entrim.__version__, entrim.__file__); assert 'installed' in entrim.__file__"
