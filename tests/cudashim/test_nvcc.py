"""How the stand-in for nvcc rewrites CUDA C."""

import pytest

from tests.cudashim import nvcc


def exports(source):
    """The kernels that are exported, whether their threads are fibers, and blocks of clusters."""
    lines = nvcc.transformed(source, 90).splitlines()
    found = [line[16:-1].split(", ") for line in lines if line.startswith("CUDASHIM_EXPORT(")]
    return {name: (fibers == "true", int(cluster)) for name, fibers, cluster in found}


def test_only_kernels_that_meet_are_fibers():
    source = """
    __device__ float inner(float x) { for (;;) { if (x) { __syncthreads(); } } return x; }
    template <class T> __device__ T outer(T x) { return inner(x); }
    extern "C" __global__ void __launch_bounds__(256, 2) meets(float *x) { x[0] = outer<float>(1); }
    extern "C" __global__ void alone(float *x) { for (int i = 0; i < 3; ++i) if (i) x[i] = 1; }
    template <class T> __global__ void pattern(T *x) { __syncwarp(); }
    __global__ void warp(int *x) { x[0] = __ballot_sync(1, 1); }
    __global__ __cluster_dims__(4, 1, 1) void cluster(int *x) { cudashim_cluster_barrier(3); }
    """
    expected = {"meets": (True, 1), "alone": (False, 1), "warp": (True, 1), "cluster": (True, 4)}
    assert exports(source) == expected


@pytest.mark.parametrize(
    ("declaration", "kinds"),
    [
        ("__shared__ float a;", {"a": "float"}),
        (
            "__shared__ volatile int a[3][N + 1], b;",
            {"a": "volatile int[3][N + 1]", "b": "volatile int"},
        ),
        ("__shared__ __align__(16) float a[4];", {"a": "float[4]"}),
        ("__align__(16) __shared__ unsigned char a[f(2, 3)];", {"a": "unsigned char[f(2, 3)]"}),
        ("__shared__ pair<int, float> a[2];", {"a": "pair<int, float>[2]"}),
    ],
)
def test_shared_variables(declaration, kinds):
    text = nvcc.transformed(declaration, 90)
    for name, kind in kinds.items():
        assert f"static cudashim::Shared<{kind}> {name}__shared;" in text
        assert f"auto &{name} = {name}__shared.get();" in text


def test_dynamic_shared_memory():
    text = nvcc.transformed("extern __shared__ float4 buffer[];", 90)
    assert text.startswith(
        "float4 *buffer = reinterpret_cast<float4 *>(cudashim_now.dynamic_shared)"
    )


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("float *p, **q; const int n[2][3];", ["p", "q", "n"]),
        ("float *p{nullptr}, *q = 0; Inner inner;", ["p", "q", "inner"]),
        ("X() : p(0) {} float at(int i) const { if (i) { i = 1; } else { --i; } } int c;", ["c"]),
        ("public: unsigned low : 3; static const int N = 3; float (*f)(int); char *p;", ["p"]),
        ("union { float *p; int i; }; struct { int j; } inner; enum Kind { A, B } kind; int k;",
         ["inner", "kind", "k"]),
        ("using T = int; Pair<int, 2> pair; std::size_t n; T t;", ["t"]),
    ],
)  # fmt: skip
def test_members_of_structures(body, names):
    assert nvcc.members(body) == names


def test_structures_that_may_be_arguments():
    source = """
    extern "C" { struct alignas(16) A { int i; }; struct __align__(8) B : A { char *p[3]; }; }
    template <class T> struct C { T *p; };
    __device__ void f() { struct D { int i; }; }
    struct E;
    """
    lines = [line for line in nvcc.transformed(source, 90).splitlines() if "STRUCTURE" in line]
    assert lines == [
        "CUDASHIM_STRUCTURE(A, CUDASHIM_MEMBER(A, i))",
        "CUDASHIM_STRUCTURE(B, CUDASHIM_MEMBER(B, p))",
    ]
