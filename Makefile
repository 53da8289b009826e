# Everything that is done with this project. Each target first makes the virtual environment that it needs, in .venv,
# with no more than what it needs; Python 3.11 or later and make are enough, test-broker also wants Java 17 and Maven.
#
#   make test ARGS="-k bucket -x"     passes arguments on
#   make test WORKERS=4               chooses how many processes run tests; as many as there are processors otherwise
#   make soak SOAK_SECONDS=60         runs it for a minute; on PULSAR_SERVICE_URL, or else on an embedded broker
#   make test-broker PULSAR=4.0.7     runs them on that version of Apache Pulsar; on 3.0.7 otherwise
#   make demo LOCAL=1                 plays on a local topic, without a broker, as pulsar-nack demo --local does
#   make demo PYTHON=python3.12       chooses the Python that .venv is made with

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?=
ARGS ?=
LOCAL ?=
WORKERS ?= auto
BENCHMARKS ?= $(sort $(wildcard benchmarks/[a-z]*.py))
PULSAR ?= $(PULSAR_VERSION)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup
SPHINX_OPTIONS ?= -W --keep-going -q

# Keep compiled tests and modules: without them each process of the tests compiles everything first, for half a minute.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-broker soak lint docs bench proto clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.with-demo ## see failed messages come back at their own times, on an embedded broker; LOCAL=1: without one
	$(BIN)/pulsar-nack demo $(if $(LOCAL),--local) $(ARGS)

test: $(VENV)/.with-test ## run the fast tests
	$(PYTEST) $(ARGS)

test-all: $(VENV)/.with-test ## run all tests that need no real broker, each in full
	$(PYTEST) -m "not broker" $(ARGS)

test-broker: $(VENV)/.with-test ## run the tests on a real Apache Pulsar, started for them (Java 17, Maven)
	PULSAR_VERSION=$(PULSAR) $(BIN)/python -m tests.broker.standalone run -- $(PYTEST) -m broker tests/broker $(ARGS)

soak: $(VENV)/.with-test ## kill and drain workers for SOAK_SECONDS (1800), and check that nothing is lost
	$(BIN)/python -W error -m tests.soak $(ARGS)

lint: $(VENV)/.with-test ## check format, style, types and words
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 0 -m "not broker" tests/test_words.py

docs: $(VENV)/.with-docs ## build the documentation into docs/_build/html
	$(BIN)/python -m sphinx $(SPHINX_OPTIONS) -b html docs docs/_build/html $(ARGS)

bench: $(VENV)/.with-test ## run the benchmarks
	@set -e; for script in $(BENCHMARKS); do echo "$(BIN)/python $$script"; $(BIN)/python "$$script" $(ARGS); done

proto: $(VENV)/.made ## generate the classes of the .proto files; an old compiler, so that protobuf 5 reads them too
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.64.3'
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. pulsar_nack/delayed/_snapshot.proto \
	  pulsar_nack/cursor/format/_cursor.proto pulsar_nack/topic/_entry.proto pulsar_nack/wire/_protocol/_pulsar.proto

clean: ## remove all that was made here except the fetched broker
	rm -rf $(VENV) build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage demo-plot.*
	find pulsar_nack tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the fetched broker too
	rm -rf .cache

# One stamp for each extra of pyproject.toml.
$(VENV)/.with-%: pyproject.toml $(VENV)/.made
	@echo "Installing pulsar-nack[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/.made:
	@for candidate in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "Making $(VENV) with $$("$$candidate" --version)"; \
	    rm -rf $(VENV); \
	    "$$candidate" -m venv $(VENV) || exit 1; \
	    touch $@; \
	    exit 0; \
	  fi; \
	done; \
	echo "No Python of version 3.11 or later among: $(or $(PYTHON),python3 python3.14 to python3.11 python)." >&2; \
	echo "Name one with: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
	exit 1
