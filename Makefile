# Everything runs in .venv, which these targets make and keep up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes, each of which would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types imports pytest pycuda test-gpu test-jobs test-numpy test-peers
.PHONY: test-crash test-long fuzz test-installed test-oldest gpu-compile gpu-hour docs status
.PHONY: measure bench bench-report clean

demo: $(VENV)/.examples
	$(BIN)/python examples/digits_cnn.py

test: lint types imports pytest

lint: $(VENV)/.test
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

types: $(VENV)/.test
	$(BIN)/mypy --no-error-summary

imports: $(VENV)/.test
	$(BIN)/lint-imports --no-cache > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
GPU_TESTS := tests/handlers/pycuda tests/cudashim $(wildcard tests/test_gpu_*.py)
JOB_TESTS := tests/ext/mpi tests/crash tests/fuzz tests/long tests/test_lives.py tests/test_processes.py \
	tests/test_interrupts.py tests/training/test_signals.py

pytest: $(VENV)/.test pycuda
	$(PYTEST) $(addprefix --ignore=,$(GPU_TESTS) $(JOB_TESTS))

# The handler for GPUs in full, on a CUDA driver for the CPU.
test-gpu: $(VENV)/.test pycuda
	$(PYTEST) $(GPU_TESTS)

# Jobs of several processes, signals, killed and long trainings, damaged inputs: a few of each.
test-jobs: $(VENV)/.test
	$(PYTEST) $(JOB_TESTS)

# PyCUDA, built without a toolkit; where it cannot be, the tests of its handler say so.
pycuda: $(VENV)/.test
	-@$(BIN)/python tools/build_pycuda.py

# The same tests with every native piece switched off.
test-numpy: $(VENV)/.test
	BRAINSTORM_ONEDNN=off CC=no-such-compiler $(PYTEST)

# The same tests against the wheel and the source distribution, without the source tree.
test-installed:
	PYTHON=$(PYTHON) tools/test_installed.sh

# The same tests with the oldest versions of other packages that pyproject.toml allows.
test-oldest:
	PYTHON=$(PYTHON) tools/test_oldest.sh

# Layers against PyTorch: see tests/peers/README.md.
test-peers: $(VENV)/.peers
	$(BIN)/python -m pytest tests/peers

# Training processes that are killed hundreds of times, and a million updates: docs/reliability.md.
test-crash: $(VENV)/.test
	$(BIN)/python -m tests.crash

test-long: $(VENV)/.test
	$(BIN)/python -m tests.long

# A hundred thousand damaged and hostile inputs: see tests/fuzz/README.md.
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz

# Every kernel with NVIDIA's NVRTC and nvcc, for all architectures; needs no GPU.
gpu-compile: $(VENV)/.test pycuda
	$(BIN)/python -m tools.gpu_compile

# The first hour on a machine with a GPU, offline, in parts of under ten minutes: docs/gpu.md. What
# its Python lacks comes from the folder that tools/gpu_bundle.sh makes.
WHEELS ?= gpu-bundle
GPU := .gpu
PART ?= 1
RESULTS ?= output/gpu
BUDGET ?= 540

$(GPU)/.installed:
	$(PYTHON) -m tools.gpu_install $(WHEELS) $(GPU)
	@touch $@

gpu-hour: $(GPU)/.installed
	PYTHONPATH=$(GPU):. $(PYTHON) -m tools.gpu_hour $(PART) --results $(RESULTS) --budget $(BUDGET) $(HOUR)

# Pages, reference and gallery as a site in output/docs; all code in them is run.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs output/docs

# The table of features and targets, with what shows them: docs/status.md.
status: $(VENV)/.test
	$(BIN)/python docs/make_status.py

# The budgets of CONTRIBUTING.md: sizes of files and functions, docstrings, annotations.
measure: $(VENV)/.test
	$(BIN)/python tools/measure.py

bench: $(VENV)/.bench
	@mkdir -p output/bench
	$(BIN)/python -m benchmarks.memory --json output/bench/memory.json
	$(BIN)/python -m benchmarks.steps --memory output/bench/memory.json --json output/bench/steps.json
	$(BIN)/python -m benchmarks.growth --json output/bench/growth.json
	$(BIN)/python -m benchmarks.long_sequences --json output/bench/long_sequences.json
	$(BIN)/python -m benchmarks.varying --json output/bench/varying.json
	$(BIN)/python -m benchmarks.together --json output/bench/together.json
	$(BIN)/python -m benchmarks.first_step --json output/bench/first_step.json
	$(BIN)/python -m benchmarks.steady
	$(BIN)/python -m benchmarks.layout_time
	$(BIN)/python -m benchmarks.optrees

# The tables and plots of docs/performance*.md, from what `make bench` and `make gpu-hour` measured.
bench-report: $(VENV)/.bench
	$(BIN)/python -m benchmarks.report

# A marker file per set of extras: made once, and again when the metadata changes.
$(VENV)/.%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing brainstorm[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS_$*)]'
	@touch $@

EXTRAS_examples := examples,plot
EXTRAS_test := test
EXTRAS_docs := docs
EXTRAS_bench := bench
EXTRAS_fuzz := fuzz
EXTRAS_peers := test,peers

clean:
	rm -rf $(VENV) output build *.egg-info
