# `make run` and `make test` do all the set-up themselves; with nothing to do they touch no network.
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements
MODEL_VENV := .venv-model
CLIENTS_VENV := .venv-clients

# Without bytecode every process would compile three seconds of imports at each start.
export PYTHONDONTWRITEBYTECODE :=
export VIRTUAL_ENV := $(VENV)

# Succeeds with a Python that Longhouse runs with.
RECENT := import sys, venv; sys.exit(sys.version_info < (3, 11))

# Adds what a lock names, in its versions, and leaves alone whatever else was installed beside it.
install = $(BIN)/uv pip install --quiet --require-hashes -r $(1)
# What an environment depends on while its interpreter is gone, as after an upgrade of the system: it is made anew.
gone = $(shell test -x $(1)/bin/python || echo gone)
compile = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

.PHONY: run test coverage test-model check format bench profile chaos chaos-mutants clients screenshots browser lock setup clean gone
.DEFAULT_GOAL := run

# What each target needs, and no more.
setup: $(VENV)/.run

$(VENV)/.run: $(LOCKS)/run.lock.txt $(LOCKS)/uv.lock.txt pyproject.toml $(call gone,$(VENV))
	@echo "setting up $(VENV)"
	@$(BIN)/python -c "$(RECENT)" 2>/dev/null || rm -rf $(VENV)
	@test -x $(BIN)/python || { \
		for one in python3.14 python3.13 python3.12 python3.11 python3; do \
			$$one -c "$(RECENT)" 2>/dev/null && exec $$one -m venv $(VENV); \
		done; \
		echo "Longhouse needs Python 3.11 or later, and there is none: install python3.11 with its venv module" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCKS)/uv.lock.txt
	@$(call install,$(LOCKS)/run.lock.txt)
	@$(BIN)/uv pip install --quiet --offline --no-deps --editable .
	@touch $@

# One package is built from its source, see pyproject.toml: what builds it is locked too. What is imported is compiled
# once: otherwise each worker of the tests would do so at its first start.
$(VENV)/.test: $(LOCKS)/test.lock.txt $(LOCKS)/build.lock.txt $(VENV)/.run
	@echo "adding what the tests need"
	@$(call install,$(LOCKS)/test.lock.txt) --build-constraints $(LOCKS)/build.lock.txt --compile-bytecode
	@touch $@

$(VENV)/.check: $(LOCKS)/check.lock.txt $(VENV)/.run
	@echo "adding what the checks need"
	@$(call install,$(LOCKS)/check.lock.txt)
	@touch $@

run: $(VENV)/.run
	@exec $(BIN)/longhouse serve

test: $(VENV)/.test browser
	@$(BIN)/pytest -n 4 --dist worksteal

# The console is tested in Debian's Chromium: in the one without windows, which takes half the time, else in any that is
# there. Where none can be installed, its stories are skipped and say so.
browser: $(VENV)/.browser

$(VENV)/.browser: $(VENV)/.run
	@command -v chromium-headless-shell >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
	  echo "installing chromium"; export DEBIAN_FRONTEND=noninteractive; \
	  get="apt-get -qq install --yes --no-install-recommends"; \
	  { apt-get -qq update; $$get chromium-headless-shell || command -v chromium || $$get chromium; } >/dev/null 2>&1 \
	  || echo "chromium could not be installed; the tests of the console are skipped"; }
	@if command -v chromium-headless-shell || command -v chromium; then touch $@; fi >/dev/null

# The same tests, and which lines of src/ they reach; what runs in processes that are killed is not counted.
coverage: $(VENV)/.test browser
	@$(BIN)/pytest -n 4 --dist worksteal --cov --cov-report=term:skip-covered

# llama.cpp and a small model, in a venv of their own: nothing else needs them.
test-model: $(VENV)/.test $(MODEL_VENV)/.ready
	@MODEL_PYTHON=$(MODEL_VENV)/bin/python $(BIN)/pytest tests_model

$(MODEL_VENV)/.ready: $(LOCKS)/model.lock.txt $(call gone,$(MODEL_VENV)) | $(VENV)/.run
	@echo "setting up $(MODEL_VENV)"
	@test -x $(MODEL_VENV)/bin/python || $(BIN)/python -m venv --clear --without-pip $(MODEL_VENV)
	@VIRTUAL_ENV=$(MODEL_VENV) $(call install,$(LOCKS)/model.lock.txt) --no-deps
	@touch $@

check: $(VENV)/.check $(VENV)/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy tests_model
	@$(BIN)/lint-imports

format: $(VENV)/.check
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: $(VENV)/.test
	@$(BIN)/python -m bench

# Where a step's time goes, by parts of the code and by statement: tables, and a flame graph under runs/profile.
profile: $(VENV)/.test
	@$(BIN)/python -m bench.profile

# Kills processes at work and checks what their journals say: docs/chaos.md. The seed is printed; SEED= repeats a run.
KILLS ?= 100
MINUTES ?= 60
chaos: $(VENV)/.test
	@$(BIN)/python -m chaos --kills $(KILLS) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(NATS),--nats) \
	  $(if $(REPORT),--report $(REPORT)) $(if $(FOLDER),--folder $(FOLDER))

# Broken Longhouses, each of which the checks must catch.
chaos-mutants: $(VENV)/.test
	@$(BIN)/python -m chaos --mutant all $(if $(SEED),--seed $(SEED))

# Real clients of the Responses API against a running server: docs/clients.md. ONLY="javascript/ai_sdk" runs one.
clients: $(VENV)/.test $(CLIENTS_VENV)/.ready
	@$(BIN)/python -m clients $(ONLY)

# Packages in Python and JavaScript, and the Node that runs the latter.
$(CLIENTS_VENV)/.ready: $(LOCKS)/clients.lock.txt clients/javascript/package-lock.json $(call gone,$(CLIENTS_VENV)) | $(VENV)/.run
	@echo "setting up $(CLIENTS_VENV)"
	@test -x $(CLIENTS_VENV)/bin/python || $(BIN)/python -m venv --clear --without-pip $(CLIENTS_VENV)
	@VIRTUAL_ENV=$(CLIENTS_VENV) $(call install,$(LOCKS)/clients.lock.txt)
	@cd clients/javascript && PATH="$(CURDIR)/$(CLIENTS_VENV)/bin:$$PATH" npm ci --silent
	@touch $@

# Pictures of every screen of the console, into docs/images; `--measure` tells how long lists behave instead.
screenshots: $(VENV)/.test browser
	@PYTHONPATH=tests:tests/console $(BIN)/python -m screenshots

# One resolution for all: what runs here is what is tested.
lock: $(VENV)/.run
	@cd $(LOCKS) && ../$(BIN)/$(compile) uv.in -o uv.lock.txt
	@$(BIN)/$(compile) --group test --group check pyproject.toml -o $(LOCKS)/all.txt
	@$(BIN)/$(compile) -c $(LOCKS)/all.txt pyproject.toml -o $(LOCKS)/run.lock.txt
	@$(BIN)/$(compile) -c $(LOCKS)/all.txt --no-binary claude-agent-sdk --emit-build-options --group test -o $(LOCKS)/test.lock.txt
	@cd $(LOCKS) && ../$(BIN)/$(compile) build.in -o build.lock.txt
	@$(BIN)/$(compile) -c $(LOCKS)/all.txt --group check -o $(LOCKS)/check.lock.txt
	@rm $(LOCKS)/all.txt
	@cd $(LOCKS) && ../$(BIN)/$(compile) --no-deps model.in -o model.lock.txt
	@cd $(LOCKS) && ../$(BIN)/$(compile) training.in -o training.lock.txt
	@cd $(LOCKS) && ../$(BIN)/$(compile) clients.in -o clients.lock.txt

clean:
	@rm -rf $(VENV) $(MODEL_VENV) $(CLIENTS_VENV) clients/javascript/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.*
