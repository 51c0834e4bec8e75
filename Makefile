# make demo: the main job on embedded data.    make test: every check.    make test-all: the slow ones too.
# make docs: the documentation site in site/.  make docs-serve: the same at http://127.0.0.1:8000, built again on changes.
# make dist: sdist and wheel in dist/, and the wheel tried in a fresh environment.
# Each makes its own environment; PYTHON=python3.13 chooses the interpreter.
PYTHON ?= python3
NEEDS = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cnngp needs Python 3.11 or newer; use make PYTHON=python3.12")'

.PHONY: demo test test-all lint docs docs-serve dist clean

demo: .venv/.ready
	.venv/bin/cnngp classify

test: .venv-test/.ready lint
	OMP_NUM_THREADS=1 .venv-test/bin/python -m pytest -n 2 --dist loadfile
	SCIPY_ARRAY_API=1 OMP_NUM_THREADS=1 .venv-test/bin/python -m pytest -q tests/estimators/test_conventions.py -k array_api

# With all examples of the tests that draw them, and scikit-learn's array API checks.
test-all: .venv-test/.ready lint
	CNNGP_TESTS=all SCIPY_ARRAY_API=1 OMP_NUM_THREADS=1 .venv-test/bin/python -m pytest -n 2 --dist loadfile -m 'not gpu'

lint: .venv-test/.ready
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy
	.venv-test/bin/lint-imports

docs: .venv-test/.ready
	NO_MKDOCS_2_WARNING=1 .venv-test/bin/mkdocs build --strict

docs-serve: .venv-test/.ready
	NO_MKDOCS_2_WARNING=1 .venv-test/bin/mkdocs serve

# The wheel is made from the sdist, so both are tried. The demo and the smoke test run far from the sources.
dist: .venv-test/.ready
	$(NEEDS)
	rm -rf dist .venv-dist
	.venv-test/bin/python -m build --outdir dist .
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet "$$(ls dist/*.whl)[plots]"
	cp tools/smoke_test.py .venv-dist/smoke_test.py
	cd .venv-dist && bin/python smoke_test.py
	cd .venv-dist && bin/cnngp classify --output demo

.venv/.ready: pyproject.toml
	$(NEEDS)
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --editable '.[plots]'
	touch $@

.venv-test/.ready: pyproject.toml
	$(NEEDS)
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/python -m pip install --quiet torch==2.13.0
	.venv-test/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-test .venv-dist dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis out
