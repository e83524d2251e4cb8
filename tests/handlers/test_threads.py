"""How many threads there are, and how they wait."""

import math
import os
import threading

import pytest

from brainstorm.handlers import threads
from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.threads import cpu_quota, default_threads
from brainstorm.layers import FullyConnected
from brainstorm.training import SgdStepper
from tests.handlers.running import in_process, needs_compiler
from tests.networks import batch_for, trainable
from tests.trainings import run_steps, run_threads

V1, V2 = "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup"


def v1(path, quota, period="100000", folder=V1):
    group = f"{folder}/{path}/cpu.cfs_"
    return {f"{group}quota_us": f"{quota}\n", f"{group}period_us": f"{period}\n"}


def v2(**limits):
    """Files with the limits of groups; two underscores stand for a slash."""
    return {f"{V2}/{path.replace('__', '/')}/cpu.max": text for path, text in limits.items()}


#: What /proc/self/cgroup says, other files, and the quota.
SYSTEMS = {
    "nothing": (None, {}, math.inf),
    "no groups": ("", {}, math.inf),
    "v2 without a quota": ("0::/a\n", v2(a="max 100000\n"), math.inf),
    "v2 in a container": ("0::/\n", {f"{V2}/cpu.max": "150000 100000\n"}, 1.5),
    "v2, the outer group is tighter": (
        "0::/a/b/c\n", v2(a="50000 100000\n", a__b="max 100000\n", a__b__c="400000 100000\n"), 0.5
    ),
    "v2, the inner group is tighter": (
        "0::/a/b\n", v2(a="400000 100000\n", a__b="60000 20000\n"), 3
    ),
    "v2, a sibling is none of ours": ("0::/a\n", v2(b="50000 100000\n"), math.inf),
    "v2, a group outside of the namespace": (
        "0::/../other\n", {f"{V2}/cpu.max": "200000 100000\n"}, 2
    ),
    "v1": ("4:cpu,cpuacct:/a/b\n", v1("a", 250000), 2.5),
    "v1 without a quota": ("4:cpu,cpuacct:/a\n", v1("a", -1), math.inf),
    "v1 in a container, with the path of the host": (
        "4:cpu,cpuacct:/docker/1f\n", v1("", 100000), 1
    ),
    "v1, mounted as cpu": ("1:cpu:/\n", v1("cpu", 300000, folder=V2), 3),
    "v1, another controller": ("2:cpuset:/\n", v1("cpuset", 300000, folder=V2), math.inf),
    "hybrid": (
        "4:cpu,cpuacct:/a\n1:name=systemd:/x\n0::/u\n",
        {f"{V2}/unified/u/cgroup.procs": "1", **v1("a", 200000)}, 2,
    ),
    "hybrid, with the processors in v2": (
        "1:name=systemd:/x\n0::/u\n", v2(unified__u="70000 100000"), 0.7
    ),
    "damaged": (
        "\n::\n0\n0::/a\n4:cpu,cpuacct:/b\n",
        {
            **v2(a="many 100000"), f"{V2}/cpu.max": b"\xff\xfe", **v1("b", "0"),
            **v1("", "100000", "0"),
        },
        math.inf,
    ),
    "damaged, but for one": ("0::/a\n", {**v2(a=""), f"{V2}/cpu.max": "100000 100000"}, 1),
    "no text": (b"0::/\xff\n", {f"{V2}/cpu.max": "100000 100000"}, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_tightest_quota_counts(tmp_path, system):
    groups, files, expected = SYSTEMS[system]
    if groups is not None:
        files = {"proc/self/cgroup": groups, **files}
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cpu_quota(tmp_path) == expected


@pytest.mark.parametrize(
    ("wanted", "bound", "quota", "expected"),
    [
        (None, 4, math.inf, 4), (None, 4, 1.0, 1), (None, 4, 1.1, 2), (None, 4, 0.05, 1),
        (None, 2, 8.0, 2), ("3", 2, 1.0, 3), ("3,2", 2, 1.0, 3), ("0", 2, 1.0, 1),
        ("many", 4, 3.0, 3), ("\u00b2", 4, 3.0, 3), ("99999999999", 4, 3.0, 3),
    ],
)  # fmt: skip
def test_threads_are_those_of_the_environment_or_of_the_quota(
    monkeypatch, wanted, bound, quota, expected
):
    if wanted is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(bound)), raising=False)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert default_threads() == expected
    assert NativeHandler(seed=1).info()["threads"] == str(expected)


PRODUCTS = """
from threading import Thread
import numpy as np
from brainstorm.handlers import NativeHandler
a, b = np.random.RandomState(0).rand(2, 600, 600).astype(np.float32)
handlers = [NativeHandler(np.float32, threads=threads) for threads in (1, 2)]
library = handlers[0]._library and handlers[0]._library._library
traces = []
for handler in handlers:
    out = np.empty_like(a)
    traces.append(handler.trace(lambda: handler.dot_mm(a, b, out)))
    out.fill(0)
    traces[-1].replay()
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)

def replay():
    before = library.omp_get_dynamic()
    traces[-1].replay()
    print(before, library.omp_get_dynamic())

if library:
    thread = Thread(target=replay)
    thread.start()
    thread.join()
"""


@needs_compiler
@pytest.mark.parametrize(
    "given",
    [{"OMP_DYNAMIC": "true"}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_MAX_ACTIVE_LEVELS": "0"}],
    ids=str,
)
def test_numbers_are_right_if_openmp_starts_fewer_threads_and_a_replay_gets_all(given):
    printed, _ = in_process(PRODUCTS, **given)
    if NativeHandler()._library is not None:
        assert printed == f"{int('OMP_DYNAMIC' in given)} 0\n"


# -- waiting ---------------------------------------------------------------------------------

KERNEL = """
import os, subprocess
from brainstorm.handlers import NativeHandler
from brainstorm.optree import Variable, linearise
import numpy as np
x = Variable((4,))
NativeHandler(np.float32, threads=2).run_program(
    linearise(x * 2), [np.ones(4, np.float32)], [np.ones(4, np.float32)], [False])
print(*(name for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME") if name in os.environ))
subprocess.run(["env"])
"""


@needs_compiler
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, threads._BRIEFLY["GOMP_SPINCOUNT"]),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
    ],
)
def test_threads_wait_briefly_unless_the_user_says_how(given, expected):
    unset = {*threads._BRIEFLY, "OMP_WAIT_POLICY"}
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    printed, said = in_process(KERNEL, environment, OMP_DISPLAY_ENV="verbose", **given)
    if "GOMP_SPINCOUNT = " not in said:
        pytest.skip("WITHOUT THE GNU OPENMP LIBRARY HOW ITS THREADS WAIT IS NOT TESTED")
    assert f"GOMP_SPINCOUNT = '{expected}'" in said
    seen = [line for line in printed.splitlines() if line.startswith(tuple(unset))]
    left = set(given) & set(threads._BRIEFLY)
    assert seen == [*left, *(f"{name}={given[name]}" for name in given)]


def test_binding_by_openmp_does_not_change_how_many_threads_there_are():
    """OpenMP binds the thread that loads it to one processor."""
    code = "from brainstorm.handlers import NativeHandler as H; print(H().threads, H().threads)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    free, *bound = (
        in_process(code, environment, **more)[0]
        for more in ({}, {"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "cores"})
    )
    assert len(free.split()) == 2
    assert bound == [free, free]


@needs_compiler
def test_threads_that_start_at_once_compile_each_kernel_once(cache, script):
    """Each trains a network of its own."""
    calls, start = script(), threading.Barrier(6)

    def work(number):
        net = trainable(FullyConnected(4, "tanh"), handler=NativeHandler(seed=1))
        stepper = SgdStepper(0.1)
        stepper.start(net)
        start.wait()
        run_steps(net, stepper, [batch_for(2, 3)] * 2)

    run_threads(work, 6)
    assert sum("kernel" in words for words in calls()) == len(list(cache.glob("*.so"))) > 1
    assert sum("--version" in words for words in calls()) == 1
