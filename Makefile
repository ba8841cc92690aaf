# `make` alone prints this list. Everything runs in .venv, made once from requirements/*.txt (pinned, with hashes).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PYTEST_ARGS ?=
RUN_ARGS ?=
BENCH ?=
# Processes that share the tests; 0 keeps them in the first. One more than two cores, as tests also wait for disks and sockets.
WORKERS ?= 3
SEED ?=
# How long `make soak` takes; memory is judged in its second half.
SOAK_MINUTES ?= 30
# How long the producer of `make follow-soak` sends at full speed.
FOLLOW_MINUTES ?= 10
# What `make image` calls its result, and what it builds: runtime or spark.
IMAGE ?= tierlog:latest
# Which index of known holes `make audit` asks: pypi or osv.
ADVISORIES ?= pypi
TARGET ?= runtime

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Nothing is resolved here: what is installed is what requirements/*.txt name, hash by hash.
INSTALL := $(PIP) install --require-hashes
INSTALL_SELF := $(PIP) install --no-deps --no-build-isolation -e .
BANS := tests/rules

export TIERLOG_SEED := $(SEED)
# Some machines tell Python not to keep what it compiles; every process of the tests would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

# PySpark is a Python package, which many tests import. Sessions need a Java runtime; without one a line says so.
JAVA := $(shell command -v java 2>/dev/null)

# The tests that ask Apache RocketMQ's own classes build a Java program.
# Helm comes by pip when its tests ask for it.
TEST_ALL_MARKS := slow or helm
ROCKETMQ_TOOLS := $(and $(shell command -v mvn 2>/dev/null),$(shell command -v javac 2>/dev/null))
ifneq ($(ROCKETMQ_TOOLS),)
  TEST_ALL_MARKS += or java
endif
# Of RocketMQ's real clients, Go's is built with Go, Rust's with Cargo, and Node's fetched by npm; the others need no more
# than the above.
CARGO := $(and $(shell command -v cargo 2>/dev/null),$(shell command -v cc 2>/dev/null))
NODE := $(and $(shell command -v node 2>/dev/null),$(shell command -v npm 2>/dev/null))
# The S3 servers are Go programs, built once into the user's cache folder.
GO := $(shell command -v go 2>/dev/null)
ifneq ($(GO),)
  TEST_ALL_MARKS += or s3
else
  TEST_ALL_MARKS := ($(TEST_ALL_MARKS)) and not s3
endif
# The page is tried in a real browser.
CHROMIUM := $(shell command -v chromium 2>/dev/null)
ifneq ($(CHROMIUM),)
  TEST_ALL_MARKS := ($(TEST_ALL_MARKS)) or browser
endif
# The image is built and run with what needs no registry and no daemon.
CONTAINER_TOOLS := $(and $(shell command -v buildah 2>/dev/null),$(shell command -v podman 2>/dev/null),$(shell command -v runc 2>/dev/null),$(shell command -v mmdebstrap 2>/dev/null))
ifneq ($(CONTAINER_TOOLS),)
  TEST_ALL_MARKS := ($(TEST_ALL_MARKS)) or container
else
  TEST_ALL_MARKS := ($(TEST_ALL_MARKS)) and not container
endif
TEST_ALL_MARKS := ($(TEST_ALL_MARKS)) and not spark

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
TEST_STAMPS := $(VENV)/spark.stamp $(VENV)/kernels.stamp
TEST_MARKS := not slow and not s3 and not java and not spark and not browser and not helm and not k8s and not container
# One process, as all of Spark's tests share a session, which itself uses both cores.
PYTEST_SPARK := $(BIN)/python -m pytest -n 0 $(if $(PYTEST_ARGS),,tests/spark tests/docs)
# What PYTEST_ARGS name may all belong to the other of the two runs.
OR_NONE := $(if $(PYTEST_ARGS),|| test $$? = 5)

.PHONY: help venv run image spark-demo spark-pack test test-all test-k8s test-arm64 check fmt bench soak follow-soak sbom audit lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  knobs: PYTHON=python3.12  PYTEST_ARGS='-k name -x'  RUN_ARGS='--port 9000'  SEED=7  WORKERS=4  SOAK_MINUTES=5  FOLLOW_MINUTES=2  BENCH=benchmarks/name.py  IMAGE=name:tag  ADVISORIES=osv"

run: $(VENV)/runtime.stamp ## start the service on a store of its own in .tierlog/, with a sample loaded
	@$(BIN)/python -m tierlog.service.demo $(RUN_ARGS)

spark-demo: $(VENV)/spark.stamp ## run every Spark job on the sample's archive, in build/spark-demo
	@$(BIN)/python -m tierlog.service.demo --only-archive build/spark-demo
	@$(BIN)/python -m docs.tools.spark_demo build/spark-demo

spark-pack: $(VENV)/spark.stamp ## pack what Spark executors need into dist/tierlog-spark.tar.gz
	@$(BIN)/python -m tierlog.pipeline.packing dist/tierlog-spark.tar.gz

test: $(TEST_STAMPS) ## run the tests that need nothing but Python (and Java, for Spark's)
ifeq ($(JAVA),)
	@echo "skipped: tests/spark (no Java runtime found)"
	@if [ -n "$${TIERLOG_NO_SKIPS:-}" ]; then echo "a skip counts as a failure here"; exit 1; fi
endif
	@$(PYTEST) -m "$(TEST_MARKS)" $(PYTEST_ARGS) $(OR_NONE)
ifneq ($(JAVA),)
	@$(PYTEST_SPARK) -m "spark and not slow" $(PYTEST_ARGS) $(OR_NONE)
endif

test-all: $(TEST_STAMPS) ## run the slow tests and those that need real servers (Go) or Maven
ifeq ($(ROCKETMQ_TOOLS),)
	@echo "skipped: tests/rocketmq (no Maven or no JDK found)"
	@if [ -n "$${TIERLOG_NO_SKIPS:-}" ]; then echo "a skip counts as a failure here"; exit 1; fi
endif
ifeq ($(NODE),)
	@echo "skipped: Node's client in tests/rocketmq/clients (no npm found)"
	@if [ -n "$${TIERLOG_NO_SKIPS:-}" ]; then echo "a skip counts as a failure here"; exit 1; fi
endif
ifeq ($(CARGO),)
	@echo "skipped: Rust's client in tests/rocketmq/clients (no Cargo or no C compiler found)"
	@if [ -n "$${TIERLOG_NO_SKIPS:-}" ]; then echo "a skip counts as a failure here"; exit 1; fi
endif
ifeq ($(CHROMIUM),)
	@echo "skipped: tests/browser (no chromium found)"
	@if [ -n "$${TIERLOG_NO_SKIPS:-}" ]; then echo "a skip counts as a failure here"; exit 1; fi
endif
ifeq ($(CONTAINER_TOOLS),)
	@echo "skipped: tests/container (not all of buildah, podman, runc and mmdebstrap found)"
	@if [ -n "$${TIERLOG_NO_SKIPS:-}" ]; then echo "a skip counts as a failure here"; exit 1; fi
endif
ifeq ($(GO),)
	@echo "skipped: tests/s3 (no Go found to build MinIO and versitygw with)"
	@if [ -n "$${TIERLOG_NO_SKIPS:-}" ]; then echo "a skip counts as a failure here"; exit 1; fi
else
	@$(BIN)/python -m tests.tools.s3_servers
endif
	@$(PYTEST) -m "$(TEST_ALL_MARKS)" $(PYTEST_ARGS) $(OR_NONE)
ifneq ($(JAVA),)
	@$(PYTEST_SPARK) -m "spark and slow" $(PYTEST_ARGS) $(OR_NONE)
endif

# From nothing, Kubernetes takes some twenty minutes on one core to build; it is kept in the user's cache folder.
test-k8s: $(VENV)/dev.stamp ## install the chart on a real cluster of one node with real pods (Debian, root, Go)
	@tests/tools/kubernetes_packages.sh
	@$(BIN)/python -m tests.tools.kubernetes
	@$(BIN)/python -m pytest -n 0 -m k8s $(PYTEST_ARGS)

test-arm64: $(VENV)/dev.stamp ## run the kernels' tests on an emulated arm64 processor (Debian, QEMU)
	@$(BIN)/python -m tests.tools.arm64

check: $(VENV)/dev.stamp ## lint, format, types, import contracts, bans
	@echo "check: ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "check: mypy"
	@$(BIN)/mypy
	@echo "check: import contracts"
	@$(BIN)/lint-imports
	@echo "check: bans"
	@$(BIN)/python -m pytest -q -m "not slow" $(BANS)

fmt: $(VENV)/dev.stamp ## sort imports, apply safe fixes, format
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .

bench: $(VENV)/bench.stamp ## run the benchmarks of docs/performance.md, or the one that BENCH names, and write that page
	@$(BIN)/python -m benchmarks $(BENCH)

soak: $(VENV)/dev.stamp ## everything at once for SOAK_MINUTES, with kills: no wrong answer, and memory does not grow
	@$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

follow-soak: $(VENV)/dev.stamp ## a real RocketMQ broker at full speed for FOLLOW_MINUTES: both sources have all of it (JDK, Maven, 15 GB)
	@$(BIN)/python -m tests.soak.follow_soak --minutes $(FOLLOW_MINUTES)

image: ## build the container image IMAGE with docker, podman or buildah (docs/containers.md)
	@TARGET=$(TARGET) docker/build.sh $(IMAGE)

# The libraries of the service, of its image and of Spark's, each with the hashes that pip demands.
SHIPPED := runtime image spark
sbom: $(VENV)/audit.stamp ## write what is shipped, as CycloneDX documents, to dist/sbom
	@mkdir -p dist/sbom
	@for name in $(SHIPPED); do \
	  echo "sbom: dist/sbom/$$name.cdx.json"; \
	  $(BIN)/python -W ignore::UserWarning -m cyclonedx_py requirements requirements/$$name.txt --pyproject pyproject.toml \
	    --output-reproducible --output-file dist/sbom/$$name.cdx.json; \
	done

audit: $(VENV)/audit.stamp ## ask ADVISORIES (pypi or osv) whether holes are known in what is shipped; needs the internet
	@for name in $(SHIPPED); do \
	  echo "audit: requirements/$$name.txt"; \
	  $(BIN)/python -m pip_audit --require-hashes --disable-pip --progress-spinner off \
	    --vulnerability-service $(ADVISORIES) --requirement requirements/$$name.txt; \
	done

lock: $(VENV)/dev.stamp ## pin again: requirements/*.txt from pyproject.toml (takes minutes)
	@compile="env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL $(BIN)/pip-compile --quiet \
	  --generate-hashes --allow-unsafe --strip-extras --no-header --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-emit-options"; \
	echo "lock: requirements/runtime.txt"; \
	$$compile --build-deps-for wheel -o requirements/runtime.txt pyproject.toml; \
	echo "lock: requirements/dev.txt"; \
	$$compile --build-deps-for wheel --extra dev --extra tracing --extra grpc -c requirements/runtime.txt -o requirements/dev.txt pyproject.toml; \
	echo "lock: requirements/image.txt"; \
	$$compile --build-deps-for wheel --extra tracing --extra grpc -c requirements/dev.txt -o requirements/image.txt pyproject.toml; \
	echo "lock: requirements/audit.txt"; \
	$$compile --extra audit -c requirements/dev.txt -o requirements/audit.txt pyproject.toml; \
	echo "lock: requirements/spark.txt"; \
	$$compile --build-deps-for wheel --extra spark -c requirements/dev.txt -o requirements/spark.txt pyproject.toml; \
	echo "lock: requirements/bench.txt"; \
	$$compile --build-deps-for wheel --extra bench -c requirements/dev.txt -o requirements/bench.txt pyproject.toml

clean: ## remove the environment, builds and caches; the store in .tierlog/ stays
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: $(VENV)/dev.stamp ## make .venv with everything a developer needs

# ---- the environment: a stamp per requirements file, so that nothing is installed twice

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tierlog needs Python 3.11 or newer; $(PYTHON) is not. Try: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "set-up: .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "cannot make .venv: on Debian and Ubuntu install the python3-venv package" >&2; rm -rf $(VENV); exit 1; }

$(VENV)/runtime.stamp: requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo "set-up: runtime libraries and tierlog itself (requirements/runtime.txt)"
	@$(INSTALL) -r requirements/runtime.txt
	@$(INSTALL_SELF)
	@touch $@

# dev.txt holds runtime.txt at the same versions, so this covers `make run` too.
$(VENV)/dev.stamp: requirements/dev.txt requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo "set-up: libraries, test and lint tools, and tierlog itself (requirements/dev.txt)"
	@$(INSTALL) -r requirements/dev.txt
	@$(INSTALL_SELF)
	@touch $(VENV)/runtime.stamp $@

$(VENV)/bench.stamp: requirements/bench.txt $(VENV)/dev.stamp
	@echo "set-up: what benchmarks measure beside tierlog (requirements/bench.txt)"
	@$(INSTALL) -r requirements/bench.txt
	@touch $@

$(VENV)/audit.stamp: requirements/audit.txt $(VENV)/dev.stamp
	@echo "set-up: what lists and questions the libraries that are shipped (requirements/audit.txt)"
	@$(INSTALL) -r requirements/audit.txt
	@touch $@

# Else the processes that share the tests, and those that tests start, would all compile at the same time.
$(VENV)/kernels.stamp: $(wildcard tiering/kernels/*.py index/kernels/*.py) $(VENV)/dev.stamp
	@echo "set-up: the kernels, compiled for this processor"
	@$(BIN)/python -m tests.tools.kernels
	@touch $@

# pyspark ships as source only; it is built with the setuptools of dev.txt.
$(VENV)/spark.stamp: requirements/spark.txt $(VENV)/dev.stamp
	@echo "set-up: Spark, about 450 MB (requirements/spark.txt)"
	@$(INSTALL) --no-build-isolation -r requirements/spark.txt
	@touch $@
