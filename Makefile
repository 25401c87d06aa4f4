PYTHON ?= python3
BIN := .venv/bin
FUZZ_SECONDS ?= 60

.PHONY: demo test test-all lint types bench fuzz proto clean

demo: .venv/.installed  ## ResNet-18: build on meta, extract, save, draw, load, execute, verify, optimise, compare
	$(BIN)/python examples/demo.py

test: lint types  ## everything that must pass before a change lands
	$(BIN)/python -m pytest -n 2

test-all: lint types  ## the same, with every sweep in full
	$(BIN)/python -m pytest -n 2 --run-slow

lint: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.installed
	$(BIN)/mypy

bench: .venv/.installed  ## measure, and print the tables of docs/benchmarks.md
	$(BIN)/python -m benchmarks

fuzz: .venv/.installed  ## the readers, guided by coverage, for FUZZ_SECONDS each; what fails is kept in reports/fuzz
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

proto: .venv/.installed  ## the descriptor set of the protobuf format, anew from its specification
	$(BIN)/python -m grpc_tools.protoc -I torch_ir/formats --descriptor_set_out=torch_ir/formats/torch_ir.binpb torch_ir.proto

clean:
	rm -rf .venv reports demo_output

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
