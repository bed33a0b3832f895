# From a bare checkout: `make demo` serves a whole system, `make test` proves it.
# Nothing but python3 (>= 3.11, with venv), make and the package index is needed; for the tests also
# redis-server, which they install by apt where they may.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes
PEER   := build/bench/vllm-router
# Tests wait more than they work. A file's stay together: they share the servers that it starts.
SHARED := --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: help demo test redis long evidence bench live soak fuzz lint types check lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## two stand-in clusters, a link and the gateway on 127.0.0.1:8000
	@exec $(BIN)/prfaas demo $(ARGS)

test: $(VENV)/.dev redis ## lint, types, import contracts and the whole suite but its minutes-long part
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest $(SHARED) $(ARGS)

# The tests start servers of their own, so the binary is all that is needed.
redis:
	@command -v redis-server >/dev/null || { test $$(id -u) -eq 0 && command -v apt-get >/dev/null \
		&& apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive \
		apt-get install --quiet=2 --yes --no-install-recommends redis-server; } \
		|| { echo "the tests need a real Redis 7: apt-get install redis-server" >&2; exit 1; }

long: $(VENV)/.dev redis ## the minutes-long part: trace replays, soaks
	$(BIN)/python -m pytest -m long --timeout 1500 $(ARGS)

bench: $(VENV)/.runtime $(PEER)/.installed ## this gateway beside vllm-router, into docs/benchmarks
	@$(BIN)/python -m bench.gateway $(ARGS)

live: $(VENV)/.dev redis ## play failing links, floods and more on real processes (ARGS="--only b,c")
	$(BIN)/python -m bench.live $(ARGS)

soak: $(VENV)/.dev redis ## mixed traffic and faults, then the books: make soak ARGS="--minutes 30"
	$(BIN)/python -m tests.soak $(ARGS)

fuzz: $(VENV)/.dev ## spoilt requests and answers by the thousand, from a new seed (ARGS="--inputs 100000")
	$(BIN)/python -m tests.fuzz $(ARGS)

evidence: $(VENV)/.runtime ## simulate all ways to route and write docs/evidence.md
	$(BIN)/python -m bench.evidence $(ARGS)

check: lint types

lint: $(VENV)/.dev ## ruff and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

lock: ## re-resolve requirements/*.txt (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --upgrade pyproject.toml -o requirements/runtime.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --upgrade requirements/build.in -o requirements/build.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --upgrade requirements/dev.in -o requirements/dev.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --upgrade requirements/bench.in -o requirements/bench.txt

$(VENV)/.python:
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Each stamp depends on its lock, so a changed lock reinstalls.
$(VENV)/.runtime: $(VENV)/.python requirements/runtime.txt requirements/build.txt pyproject.toml
	@echo "installing what the product needs into $(VENV) (once for each lock)"
	@$(PIP) -r requirements/runtime.txt
	@$(PIP) -r requirements/build.txt
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@echo "installing what the tests need into $(VENV) (once for each lock)"
	@$(PIP) -r requirements/dev.txt
	@touch $@

# In an environment of its own: what it asks for must not meet what we do.
$(PEER)/.installed: requirements/bench.txt
	@echo "installing vllm-router into $(PEER) (once for each lock)"
	@$(PYTHON) -m venv --clear $(PEER)
	@$(PEER)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/bench.txt
	@touch $@

clean: ## remove the environment and every cache
	rm -rf $(VENV) build/bench .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
