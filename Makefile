# Everything runs inside .venv, which the first target to need it makes. PYTHON picks the interpreter, EXTRAS what is installed:
# EXTRAS=dev,jax,torch tests those backends too.
PYTHON ?= python3
EXTRAS ?= dev
BIN := .venv/bin

.PHONY: demo test lint bench docs clean

demo: .venv/ready  ## fit the labour-force data and save the table and the pictures under demo/
	$(BIN)/python examples/labour.py --out demo

test: .venv/ready  ## lint, types, import layers and the whole test suite
	$(MAKE) --no-print-directory lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile  # two workers, one core each

lint: .venv/ready
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready  ## print the measured tables; takes minutes
	$(BIN)/python benchmarks/library_time.py
	$(BIN)/python benchmarks/paper_settings.py
	$(BIN)/python benchmarks/evaluations.py --peers
	$(BIN)/python benchmarks/parallel.py
	$(BIN)/python benchmarks/sharded.py
	$(BIN)/python benchmarks/backends.py

docs: .venv/docs  ## build the documentation site into site/; runs the examples, fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf .venv demo build dist .pytest_cache .mypy_cache .ruff_cache
