# make demo: the main job on embedded data.  make test: every check.  Each makes its own environment.
PYTHON ?= python3

.PHONY: demo test lint clean

demo: .venv/.ready
	.venv/bin/cnngp classify

test: .venv-test/.ready lint
	OMP_NUM_THREADS=1 .venv-test/bin/python -m pytest -n 2 --dist loadfile

lint: .venv-test/.ready
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy
	.venv-test/bin/lint-imports

.venv/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cnngp needs Python 3.11 or newer; use make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --editable '.[plots]'
	touch $@

.venv-test/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cnngp needs Python 3.11 or newer; use make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/python -m pip install --quiet torch==2.13.0
	.venv-test/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-test .pytest_cache .mypy_cache .ruff_cache .hypothesis out
