PYTHON ?= python3
BIN := .venv/bin
FUZZ_SECONDS ?= 60
TORCH ?= 2.15.*
TORCH_ENV ?= .venv-torch-$(TORCH:.*=)
TRANSFORMERS ?=
TORCH_TESTS ?= -n 2 --dist worksteal
UNPINNED := torch$(if $(TRANSFORMERS),|transformers|huggingface_hub|tokenizers)
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.PHONY: install demo test test-all test-cpus test-torch test-here browser lint types bench fuzz docs docs-serve proto clean

install: .venv/.installed  ## the environment alone: pinned versions, in .venv

demo: .venv/.demo  ## ResNet-18: build on meta, extract, save, draw, load, execute, verify, optimise, compile, compare
	$(BIN)/python examples/demo.py

test: lint browser  ## everything that must pass before a change lands; the type checker runs as one of the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: lint browser  ## the same, with every sweep in full
	$(BIN)/python -m pytest -n 2 --dist worksteal --run-slow -o faulthandler_timeout=36000

test-cpus: .venv/.installed  ## the tests that compute floats, as with AVX2 and SSE4 alone, and with 1, 2 and 8 threads
	$(BIN)/python -m tests.other_cpus -n 2 --dist worksteal

test-torch:  ## the core suites with TORCH=2.15.*, TRANSFORMERS=5.23.* (pinned if not given) and PYTHON, in the folder TORCH_ENV
	test -x $(TORCH_ENV)/bin/python || $(PYTHON) -m venv $(TORCH_ENV)
	grep -Ev '^($(UNPINNED))==' constraints.txt > $(TORCH_ENV)/constraints.txt
	$(TORCH_ENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(TORCH_ENV)/constraints.txt \
		'torch==$(TORCH)' $(if $(TRANSFORMERS),'transformers==$(TRANSFORMERS)') -e '.[safetensors,draw,transformers,protobuf,onnx]' \
		expecttest grpcio-tools hypothesis jsonschema pytest pytest-xdist
	$(TORCH_ENV)/bin/python -m tests.installed --core $(TORCH_TESTS) -p no:cacheprovider

test-here:  ## every test with the active PYTHON and its packages, without installing any; what is missing is skipped by name
	$(PYTHON) -m tests.installed $(TORCH_TESTS) -p no:cacheprovider

browser: .venv/.installed  ## a Chromium for the tests of pages, where there is none and it can be had; never fails
	@$(BIN)/python -m tests.browser --install || true

lint: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.installed
	$(BIN)/mypy

bench: .venv/.installed  ## measure, and print the tables of docs/benchmarks.md
	$(BIN)/python -m benchmarks

fuzz: .venv/.installed  ## readers and analyses, guided by coverage, for FUZZ_SECONDS each; what fails is kept in reports/fuzz
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

docs: .venv/.installed  ## the documentation as a site that needs no network: site/index.html
	$(MKDOCS) build --strict

docs-serve: .venv/.installed  ## the same on localhost:8000, rebuilt at every change
	$(MKDOCS) serve --strict

proto: .venv/.installed  ## regenerate the descriptor set of the protobuf format
	for name in torch_ir chakra; do $(BIN)/python -m grpc_tools.protoc -I torch_ir/formats \
		--descriptor_set_out=torch_ir/formats/$$name.binpb $$name.proto; done

clean:
	rm -rf .venv .venv-torch-* reports demo_output site

.venv/.demo: pyproject.toml constraints.txt  # the core and the picture: a small part of the rest
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[draw,safetensors]'
	touch $@

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch .venv/.demo $@
