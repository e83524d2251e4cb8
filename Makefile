# Everything runs in .venv, which these targets make and keep up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types rooms pytest test-peers bench measure clean

demo: $(VENV)/.examples
	$(BIN)/python examples/digits_cnn.py

test: lint types rooms pytest

lint: $(VENV)/.test
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

types: $(VENV)/.test
	$(BIN)/mypy --no-error-summary

rooms: $(VENV)/.test
	$(BIN)/lint-imports --no-cache > $(VENV)/rooms.log || { cat $(VENV)/rooms.log; exit 1; }

pytest: $(VENV)/.test
	$(BIN)/python -m pytest

# Layers against PyTorch: see tests/peers/README.md.
test-peers: $(VENV)/.peers
	$(BIN)/python -m pytest tests/peers

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.steps
	$(BIN)/python -m benchmarks.import_time
	$(BIN)/python -m benchmarks.layout_time
	$(BIN)/python -m benchmarks.optrees

# A marker file per set of extras: made once, and again when the metadata changes.
$(VENV)/.%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing brainstorm[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS_$*)]'
	@touch $@

EXTRAS_examples := examples,plot
EXTRAS_test := test
EXTRAS_bench := bench
EXTRAS_peers := test,peers

clean:
	rm -rf $(VENV) output build *.egg-info
