"""A short version of ``make fuzz``, and inputs that hypothesis makes from nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from brainstorm.describable import create_from_description
from tests.fuzz import worker
from tests.fuzz.__main__ import run, run_part
from tests.fuzz.kinds import KINDS, build, build_from_spec, files, make_input, through_file
from tests.fuzz.worker import outcome_of

NAMES = st.sampled_from(["Input", "A", "@type", "@outgoing_connections", "size", "default", "é"])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    | st.sampled_from(["Input", "FullyConnected", "Lstm", "A.default", "Network", "ClipValues"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(NAMES, below, max_size=4),
    max_leaves=12,
)  # fmt: skip


def test_changed_inputs_give_an_object_or_an_error_of_the_package():
    counts = run(count=500, seed=1, workers=2)
    assert {kind: count["failed"] for kind, count in counts.items()} == dict.fromkeys(KINDS, 0)
    assert all(count["accepted"] and count["refused"] for count in counts.values())


@settings(max_examples=100)
@given(st.sampled_from(["network", "run", "data", "logs"]), st.binary(max_size=200), st.booleans())
def test_any_bytes(kind, data, with_signature):
    data = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0" + data if with_signature else data
    assert outcome_of(kind, data) == "refused"


@settings(max_examples=75)
@given(TREES)
def test_any_architecture_and_description(tree):
    for read in (build, create_from_description):
        assert outcome_of(read, tree) in ("accepted", "refused")


@settings(max_examples=100)
@given(st.text(st.sampled_from("FRLTBDCPlrstmap0123456789.: é²"), max_size=12))
def test_any_spec(text):
    assume(not re.search("[0-9]{4}", text))  # "L7500" is built, which takes its time and memory
    assert outcome_of(build_from_spec, text) in ("accepted", "refused")


# -- the fuzzer itself ----------------------------------------------------------------------------


def test_unchanged_inputs_are_accepted():
    for kind in ("network", "run", "data", "logs"):
        assert {outcome_of(kind, data) for data in files(kind)} == {"accepted"}


def test_inputs_are_made_again_from_their_numbers():
    for kind in KINDS:
        assert repr(make_input(kind, 3, 7)) == repr(make_input(kind, 3, 7))
    assert make_input("logs", 3, 7) != make_input("logs", 3, 8)


def test_what_is_no_error_of_the_package_is_a_failure(monkeypatch):
    def fail(value):
        raise KeyError(value)

    def be_slow(value):
        sum(range(10**7))

    assert "KeyError: 5" in outcome_of(fail, 5)
    assert outcome_of(be_slow, 5) == "accepted"
    monkeypatch.setattr(worker, "SECONDS", 0.01)
    assert re.match(r"took \d+.\d s", outcome_of(be_slow, 5))
    seen = []
    through_file(lambda path: seen.append(Path(path).read_bytes()))(b"abc")
    assert seen == [b"abc"]


def die(sender, kind, seed, start, stop):
    for number in range(start, stop):
        sender.send((number, "begun"))
        if number == 1:
            os.abort()
        sender.send((number, "refused"))


def test_a_worker_that_dies_is_a_failure_and_the_next_inputs_follow():
    outcomes = dict.fromkeys(range(4), "refused") | {1: "the worker ended with -6"}
    assert run_part("spec", 0, 0, 4, die) == outcomes
