# The whole interface of this repository: `make demo` and `make test`; the rest are parts of them.
PY := .venv/bin/python
# Tests wait as much as they compute: three workers for two processors.
WORKERS := $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))
PYTEST := .venv/bin/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests start the command hundreds of times: its modules are compiled once.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-forges check fix web bench lock clean

help:
	@echo "make demo       watch a run fix a real bug in a sandbox (Debian, root)"
	@echo "make test       all checks and all tests"
	@echo "make test-long  property tests that search, fuzzing and chaos at full length"
	@echo "make test-forges the tests of pull requests, against the forges' published descriptions"
	@echo "make check      format, lint, types, import direction, plain words"
	@echo "make fix        format, and fix what the linter can fix"
	@echo "make web        build the pages that the server shows in a browser"
	@echo "make bench      measurements, as ratios"
	@echo "make lock       resolve and pin the dependencies again"
	@echo "make clean      remove the virtual environment and the demo's files"

.venv/run.done: requirements/run.txt requirements/uv.txt pyproject.toml scripts/install
	@scripts/install run

.venv/dev.done: requirements/dev.txt requirements/uv.txt pyproject.toml scripts/install
	@scripts/install dev

demo: .venv/run.done
	@npm_config_fetch_retries=0 scripts/web || echo "The pages were not built: everything but the browser works without them."
	@scripts/demo

web: .venv/dev.done
	@scripts/web

check: .venv/dev.done web
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/pyright
	.venv/bin/lint-imports --no-logo
	scripts/prose

fix: .venv/dev.done
	.venv/bin/ruff format
	.venv/bin/ruff check --fix

test: .venv/dev.done check
	$(PYTEST)

test-long: .venv/dev.done
	$(PYTEST) --long -m "hypothesis or long"

test-forges: .venv/dev.done
	@scripts/forge-descriptions .demo/forges
	CLOISTER_FORGE_DESCRIPTIONS=$(CURDIR)/.demo/forges $(PYTEST) tests/forge/pulls

bench: .venv/dev.done
	@for bench in bench/bench_*.py bench/egress.py bench/loop.py bench/first_thought.py bench/sandbox.py bench/stream.py bench/parts/local_model.py bench/parts/audit.py; do $(PY) $$bench; done

lock: .venv/dev.done
	@scripts/lock

clean:
	rm -rf .venv .demo web/dist web/node_modules
