# `make run` and `make test` do all the set-up themselves; with nothing to do they touch no network.
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.lock.txt

.PHONY: run test check format bench lock setup clean
.DEFAULT_GOAL := run

setup: $(VENV)/.ready

$(VENV)/.ready: $(LOCK) requirements/uv.lock.txt pyproject.toml
	@echo "setting up $(VENV)"
	@test -x $(BIN)/python || python3 -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock.txt
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --require-hashes $(LOCK)
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --offline --no-deps --editable .
	@touch $@

run: setup
	@exec $(BIN)/longhouse serve

test: setup
	@$(BIN)/pytest -n 2 --dist worksteal

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: setup
	@$(BIN)/python -m bench

lock: setup
	@cd requirements && ../$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header uv.in -o uv.lock.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o $(LOCK)

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
