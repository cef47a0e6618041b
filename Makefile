# Everything runs inside .venv, which the first target to need it makes. PYTHON picks the interpreter, EXTRAS what is installed:
# EXTRAS=dev,jax,torch runs the tests of those backends in `make test` too. `make test-backends` has them in .venv-backends,
# and TORCH says which PyTorch goes there.
PYTHON ?= python3
EXTRAS ?= dev
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# one core for each process; three of them, as many tests wait for processes, signals and clusters. Byte code is kept, also
# where the environment says otherwise: to compile qbvi takes each of the many processes that tests start a second.
ONE_CORE := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
PYTEST := -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-backends test-integrations release-check soak lint bench docs clean

demo: .venv/ready  ## fit the labour-force data and save the table and the pictures under demo/
	$(BIN)/python examples/labour.py --out demo

test: .venv/ready  ## lint, types, import layers and the test suite; its last lines say what it left out
	$(MAKE) --no-print-directory lint
	$(ONE_CORE) $(BIN)/python $(PYTEST)

test-backends: .venv-backends/ready  ## the tests that need JAX or PyTorch, which are installed (CPU) for them alone
	$(ONE_CORE) .venv-backends/bin/python $(PYTEST) -m 'backends and not soak'

test-integrations: .venv-integrations/ready  ## the tests against the packages that problems come from, which are installed for them alone
	$(ONE_CORE) .venv-integrations/bin/python $(PYTEST) -m 'integrations and not soak'

release-check:  ## build wheel and sdist, install each extra afresh, test both ends of the supported versions; CHECK=--heavy for all
	$(ONE_CORE) $(PYTHON) packaging/release_check.py $(CHECK)

soak: .venv/ready  ## the long statistical sweeps and the attacks, all seeds and cases; takes minutes
	$(ONE_CORE) $(BIN)/python $(PYTEST) --dist worksteal -m soak

lint: .venv/ready
	$(BIN)/ruff check src tests benchmarks examples packaging docs/hooks docs/figures
	$(BIN)/ruff format --check src tests benchmarks examples packaging docs/hooks docs/figures
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready  ## print the measured tables; takes minutes
	$(BIN)/python benchmarks/library_time.py
	$(ONE_CORE) $(BIN)/python benchmarks/exact.py
	$(BIN)/python benchmarks/paper_settings.py
	$(BIN)/python benchmarks/evaluations.py --peers
	$(BIN)/python benchmarks/parallel.py
	$(BIN)/python benchmarks/sharded.py
	$(BIN)/python benchmarks/backends.py

docs: .venv/docs  ## build the documentation site into site/; runs the examples, fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/docs: .venv/ready
	$(BIN)/python $(PIP_INSTALL) --editable '.[docs]'
	touch $@

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) --upgrade pip
	$(BIN)/python $(PIP_INSTALL) --editable '.[$(EXTRAS)]'
	echo '$(EXTRAS)' > $@

ifneq ($(EXTRAS),$(shell cat .venv/ready 2>/dev/null))  # other extras than last time are installed too
.PHONY: .venv/ready
endif

.venv-backends/ready: pyproject.toml
	$(PYTHON) -m venv .venv-backends
	.venv-backends/bin/python $(PIP_INSTALL) --upgrade pip
	.venv-backends/bin/python $(PIP_INSTALL) '$(TORCH)' --editable '.[dev,jax]'
	touch $@

.venv-integrations/ready: pyproject.toml
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python $(PIP_INSTALL) --upgrade pip
	.venv-integrations/bin/python $(PIP_INSTALL) --editable '.[dev,integrations]'
	touch $@

clean:
	rm -rf .venv .venv-backends .venv-integrations demo build dist .pytest_cache .mypy_cache .ruff_cache
