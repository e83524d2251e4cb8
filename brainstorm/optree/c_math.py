"""Mathematical functions as C text that compilers can vectorise.

The float versions have no branches, so loops that call them become vector code. They are within
3 units in the last place of the exact value, and NaN, infinities and denormal numbers come out
as IEEE 754 says. For double the vector functions of the GNU C library (libmvec, 4 units in the
last place) are declared where the compiler is told to use them, otherwise libm's are called.

A source gets the functions that it uses, and declarations instead of header files: those would
take longer to compile than most kernels.
"""

from __future__ import annotations

import re

from brainstorm.optree.loops import C_TYPES

_TYPE_GENERIC = ("exp", "exp2", "expm1", "log", "log2", "log1p", "tanh")
_IN_BOTH = (
    "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
)  # fmt: skip
_LIBRARY = (*_IN_BOTH, "lgamma", "sqrt", "fabs", "rint", "floor")
_OF_TWO = ("pow", "fmod")
_IN_LIBMVEC = {*_TYPE_GENERIC, *_IN_BOTH, "pow", *(f"{name}f" for name in (*_IN_BOTH, "pow"))}

_HEAD = "#include <stddef.h>\n#include <stdint.h>\n"

_DECLARED = {
    "malloc": "void *malloc(size_t);\n",
    "free": "void free(void *);\n",
    "memcpy": "void *memcpy(void *, const void *, size_t);\n",
    "INFINITY": "#define INFINITY 1e999f\n",
    "NAN": "#define NAN (INFINITY - INFINITY)\n",
}

_FLOAT = r"""
static inline float bs_bits_to_float(int32_t i) { float f; memcpy(&f, &i, 4); return f; }

static inline int32_t bs_float_to_bits(float f) { int32_t i; memcpy(&i, &f, 4); return i; }

/* 2^k for -126 <= k <= 127 */
static inline float bs_power(uint32_t k) {
    return bs_bits_to_float((int32_t)((k + 127) << 23));
}

/* e^r - 1 for |r| <= ln(2)/2; Chebyshev interpolation of (e^r - 1 - r) / r^2 */
static inline float bs_small_expm1(float r) {
    const float s = r * r;
    const float low = 0.166665768f * r + 0.5f, high = 0.00836321214f * r + 0.0416665544f;
    return s * ((0.00139262249f * s + high) * s + low) + r;
}

/* x to the nearest whole number, which is also left in the lowest bits of *t */
static inline float bs_nearest(float x, float *t) {
    *t = x + 12582912.0f;
    return *t - 12582912.0f;
}

/* p * 2^n for n as bs_nearest left it: in two steps, as 2^n itself may not be a normal number */
static inline float bs_scaled(float p, float t) {
    const uint32_t n = (uint32_t)bs_float_to_bits(t), half = (n << 22) & 0xff800000u;
    const float first = bs_bits_to_float((int32_t)((uint32_t)bs_float_to_bits(p) + half));
    return first * bs_bits_to_float((int32_t)((n << 23) + 0x3f800000u - half));
}

static inline float bs_exp(float x) {
    float t;
    x = 89.0f < x ? 89.0f : x;
    x = -104.0f > x ? -104.0f : x;
    const float n = bs_nearest(x * 1.44269504f, &t);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    return bs_scaled(1.0f + bs_small_expm1(r), t);
}

static inline float bs_exp2(float x) {
    float t;
    x = 129.0f < x ? 129.0f : x;
    x = -151.0f > x ? -151.0f : x;
    const float n = bs_nearest(x, &t);
    return bs_scaled(1.0f + bs_small_expm1((x - n) * 0.693147181f), t);
}

static inline float bs_expm1(float x) {
    const float at = x > 89.0f ? 89.0f : x < -40.0f ? -40.0f : x;
    const float n = rintf(at * 1.44269504f);
    const float r = (at - n * 0.693359375f) + n * 2.12194440e-4f;
    const float half = bs_power((uint32_t)(int32_t)n - 1);
    const float y = 2.0f * (half * bs_small_expm1(r) + (half - 0.5f));
    return x == 0.0f ? x : y;
}

/* (e - 1) / (e + 1), e = e^2|x| = 2^n e^r */
static inline float bs_tanh(float x) {
    float t;
    float a = 2.0f * fabsf(x);
    a = 20.0f < a ? 20.0f : a;
    const float n = bs_nearest(a * 1.44269504f, &t);
    const float p = bs_small_expm1(a - n * 0.693147181f);
    const float power = bs_bits_to_float((int32_t)(
        ((uint32_t)bs_float_to_bits(t) << 23) + 0x3f800000u));
    const float e = power * p + (power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}

/* x = 2^n * m with m from sqrt(1/2) to sqrt(2); ln(m) is returned */
static inline float bs_log_parts(float x, float *n) {
    const int tiny = x < 1.17549435e-38f;
    const uint32_t bits = (uint32_t)bs_float_to_bits(tiny ? x * 8388608.0f : x) - 0x3f3504f3;
    const int32_t e = (int32_t)bits >> 23;
    const float r = bs_bits_to_float((int32_t)(bits - ((uint32_t)e << 23) + 0x3f3504f3)) - 1.0f;
    *n = (float)(e - (tiny ? 23 : 0));
    float p = 7.0376836292e-2f;
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    return r + (r * r * r * p - 0.5f * (r * r));
}

static inline float bs_log_special(float x, float y) {
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x == x && x < INFINITY ? y : x + 0.0f;
}

static inline float bs_log_ordinary(float x) {
    float n;
    const float y = bs_log_parts(x, &n);
    return n * 0.693359375f + (y - n * 2.12194440e-4f);
}

static inline float bs_log(float x) { return bs_log_special(x, bs_log_ordinary(x)); }

static inline float bs_log2(float x) {
    float n;
    const float y = bs_log_parts(x, &n);
    return bs_log_special(x, n + y * 1.44269504f);
}

static inline float bs_log1p(float x) {
    const float u = 1.0f + x;
    /* what rounding took from x comes back in first order */
    const float y = bs_log_ordinary(u) + (x - (u - 1.0f)) / u;
    return x == 0.0f ? x : bs_log_special(u, y);
}
"""


def _library() -> dict[str, str]:
    """Return the declarations of what libm and libmvec have."""
    wanted = [("double", name, 1) for name in (*_TYPE_GENERIC, *_LIBRARY)]
    wanted += [("float", f"{name}f", 1) for name in _LIBRARY]
    wanted += [("double", name, 2) for name in _OF_TWO]
    wanted += [("float", f"{name}f", 2) for name in (*_OF_TWO, "copysign")]
    vector = "#ifdef BS_VECTOR_LIBRARY\n#pragma omp declare simd notinbranch\n#endif\n"
    return {
        name: f"{vector * (name in _IN_LIBMVEC)}{type_} {name}({', '.join([type_] * operands)});\n"
        for type_, name, operands in wanted
    }


def _float_functions() -> dict[str, str]:
    texts = [f"{text.strip()}\n" for text in _FLOAT.split("\n\n")]
    return {re.findall(r"^static inline \w+ (\w+)", text, re.M)[0]: text for text in texts}


def _reductions() -> dict[str, str]:
    return {
        f"bs_{name}": f"#pragma omp declare reduction(bs_{name} : {', '.join(C_TYPES.values())} : "
        f"omp_out = (omp_in {sign} omp_out || omp_in != omp_in) ? omp_in : omp_out) "
        "initializer(omp_priv = omp_orig)\n"
        for name, sign in (("max", ">"), ("min", "<"))
    }


def _type_generic() -> dict[str, str]:
    """Return macros with which the names of ``<tgmath.h>`` work for float and double."""
    rows = [(name, "x", f"bs_{name}") for name in _TYPE_GENERIC]
    rows += [(name, "x", f"{name}f") for name in _LIBRARY]
    rows += [(name, "x, y", f"{name}f") for name in _OF_TWO]
    return {
        name: f"#define {name}({xs}) _Generic((x), float: {of_float}, default: {name})({xs})\n"
        for name, xs, of_float in rows
    }


#: What a source may use: name, text, and the words of the text, each behind those it uses.
_PIECES = [
    (name, text, set(re.findall(r"\w+", text)))
    for group in (_DECLARED, _library(), _float_functions(), _reductions(), _type_generic())
    for name, text in group.items()
]


def with_math(source: str) -> str:
    """Return a source with the functions in front of it that it uses, directly or not.

    The names of ``<tgmath.h>`` work for float and double.
    """
    words = set(re.findall(r"\w+", source))
    used = []
    for name, text, more in reversed(_PIECES):
        if name in words:
            used.append(text)
            words |= more
    return "\n".join([_HEAD, *reversed(used), source])
