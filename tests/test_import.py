"""What importing brainstorm does, and above all what it does not do."""

import ast
import functools
import json
import subprocess
import symtable
import sys
from pathlib import Path

import pytest

import brainstorm

SOURCES = sorted(Path(brainstorm.__file__).parent.rglob("*.py"))

#: Modules whose import may have other brainstorm modules as its only company.
STANDARD = set(sys.stdlib_module_names) | {"brainstorm", "numpy", "h5py"}


def run(code):
    """Run code in a fresh interpreter and return what it prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def before_and_after():
    return run(
        """
import json, logging, sys, warnings
warnings.simplefilter("error")
import h5py, numpy
before = set(sys.modules)
drawn = numpy.random.get_state()[1].tolist(), numpy.random.get_state()[2]
import brainstorm
import brainstorm.all
import brainstorm.testing
same = drawn == (numpy.random.get_state()[1].tolist(), numpy.random.get_state()[2])
errors = numpy.geterr()
from brainstorm import handlers
print(json.dumps({
    "new": sorted(set(sys.modules) - before),
    "random state untouched": same,
    "default handler made": handlers._default is not None,
    "numpy errors": errors == {"divide": "warn", "over": "warn", "under": "ignore",
                               "invalid": "warn"},
    "root log handlers": len(logging.getLogger().handlers),
    "seed": brainstorm.global_rnd.generate_seed(),
}))
"""
    )


def test_it_loads_only_numpy_and_h5py_and_changes_nothing_outside(before_and_after):
    new = [name for name in before_and_after["new"] if not name.startswith("_")]
    assert {name.partition(".")[0] for name in new} <= STANDARD
    assert before_and_after["random state untouched"]
    assert before_and_after["numpy errors"]
    assert before_and_after["root log handlers"] == 0


def test_the_default_handler_is_made_on_first_use(before_and_after):
    assert not before_and_after["default handler made"]


def test_seeds_differ_from_run_to_run_until_one_is_set(before_and_after):
    code = "import json; from brainstorm import global_rnd as rnd; free = rnd.generate_seed();"
    show = "rnd.set_seed(42); print(json.dumps([free, rnd.generate_seed()]))"
    free, fixed = run(code + show)
    brainstorm.global_rnd.set_seed(42)
    assert fixed == brainstorm.global_rnd.generate_seed()
    assert free != before_and_after["seed"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_top_level_imports_name_nothing_optional(path):
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module.partition(".")[0])
    assert names - STANDARD == set()


ROOT = Path(__file__).parents[1]
#: Our packages, and their folders; `brainstorm` may be installed elsewhere.
OWN = {name: ROOT / name for name in ("benchmarks", "tests")}
OWN["brainstorm"] = Path(brainstorm.__file__).parent


@functools.cache
def names_in(module):
    """Return what `from module import` finds, without importing it."""
    package, *rest = module.split(".")
    place = OWN[package].joinpath(*rest)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    found = {path.stem for path in place.glob("*")}
    if file.exists():
        symbols = symtable.symtable(file.read_text(), str(file), "exec").get_symbols()
        found |= {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    return found


@pytest.mark.parametrize("folder", ["benchmarks", "tests/peers"])
def test_files_that_need_other_libraries_import_what_there_is(folder):
    for path in (ROOT / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OWN:
                assert {alias.name for alias in node.names} <= names_in(node.module), path
