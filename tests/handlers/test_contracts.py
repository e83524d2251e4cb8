"""The grammar of contracts: what is read, what is refused, how shapes are bound; who has one."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import DebugHandler, Handler, NativeHandler, NumpyHandler, PyCudaHandler
from brainstorm.handlers.argument_kinds import around, kept, reduces, sides
from brainstorm.handlers.contracts import Contract, operation


def contract_of(text, function, where=""):
    return operation(text, where)(function).contract


def product(self, a, b, out, transa=False): ...


PRODUCT = contract_of("a(M,K)^transa b(K,N) -> out(M,N)+", product)


def arrays(**shapes):
    return {name: SimpleNamespace(shape=shape, size=1) for name, shape in shapes.items()}


def test_a_contract_is_parsed_once_into_arguments():
    a, b, out, flag = PRODUCT.arguments
    assert (a.name, a.shapes, a.transposed, a.written) == ("a", (("M", "K"),), "transa", False)
    assert (b.kept, out.written, out.in_place, out.kept) == (False, True, False, True)
    assert (flag.name, flag.kind) == ("transa", "bool")
    assert PRODUCT.call == "product(a, b, out)"
    assert PRODUCT.result is None


def test_marks_of_arguments():
    def f(self, v, w, s, out, add=True): ...

    contract = contract_of("-1<=v(M,1)<N*2 w(1,N)|(M,1)? s:scalar ~> out(M,N)+add => bool", f)
    v, w, s, out, _ = contract.arguments
    assert (v.low, v.high) == (-1, "N*2")
    assert (w.shapes, w.optional) == ((("1", "N"), ("M", "1")), True)
    assert (s.kind, s.is_array) == ("scalar", False)
    assert out.in_place
    assert out.keeps({"add": 1})
    assert not out.keeps({"add": 0})
    assert contract.result == "bool"


def refuses(match):
    return pytest.raises(HandlerValidationError, match=match)


def test_symbols_are_bound_to_sizes_of_a_transposed_argument_the_other_way_round():
    values = arrays(a=(2, 3), b=(3, 4), out=(2, 4))
    assert PRODUCT.bind({**values, "transa": False}) == {"M": 2, "K": 3, "N": 4}
    ones = arrays(a=(1, 1), b=(1, 1), out=(1, 1))
    assert PRODUCT.bind({**ones, "transa": True}) == {"M": 1, "K": 1, "N": 1}
    values |= arrays(a=(3, 2))
    assert PRODUCT.bind({**values, "transa": True}) == {"M": 2, "K": 3, "N": 4}
    with refuses(r"'b': expected shape \(K=2, N\), got \(3, 4\)"):
        PRODUCT.bind({**values, "transa": False})


def test_a_transposed_shape_is_shown_as_it_must_be_given():
    def f(self, a, b, t): ...

    with refuses(r"'b': expected shape \(3, M=2\), got \(2, 3\)"):
        contract_of("a(M) b(M,3)^t", f).bind({**arrays(a=(2,), b=(2, 3)), "t": True})


def test_stars_stand_for_any_number_of_dimensions():
    def f(self, a, b, out): ...

    contract = contract_of("a(*S,M) b(*S,N) -> out(*S,M+N)", f)
    assert contract.bind(arrays(a=(2,), b=(1,), out=(3,))) == {"S": (), "M": 2, "N": 1}
    assert contract.bind(arrays(a=(7, 8, 2), b=(7, 8, 1), out=(7, 8, 3)))["S"] == (7, 8)
    with refuses(
        r"^f\(a, b, out\): argument 'out': expected shape \(\*S=\(7,\), M\+N=3\), got \(7, 4\); "
        r"sizes given by 'a' \(7, 2\), 'b' \(7, 1\)$"
    ):
        contract.bind(arrays(a=(7, 2), b=(7, 1), out=(7, 4)))


def test_too_few_dimensions():
    with refuses(r"'a': expected shape \(M, K\), got \(2,\)$"):
        PRODUCT.bind({**arrays(a=(2,), b=(3, 4), out=(2, 4)), "transa": False})

    def f(self, a): ...

    with refuses(r"expected shape \(M, \*S, N\), got \(2,\)"):
        contract_of("a(M,*S,N)", f).bind(arrays(a=(2,)))


def test_conditions_name_the_sizes_they_use():
    def f(self, a, pad, b): ...

    contract = contract_of("a(M) pad:int -> b(N)", f, where="N == M + 2*pad; M > 1")
    assert contract.bind({**arrays(a=(2,), b=(4,)), "pad": 1}) == {"M": 2, "N": 4}
    with refuses(
        r"^f\(a, pad, b\): expected N == M \+ 2\*pad, got pad=1, M=2, N=5; "
        r"sizes given by 'a' \(2,\), 'b' \(5,\)$"
    ):
        contract.bind({**arrays(a=(2,), b=(5,)), "pad": 1})
    with refuses("expected M > 1, got M=1"):
        contract.bind({**arrays(a=(1,), b=(3,)), "pad": 1})


def test_optional_arguments_may_be_absent():
    def f(self, x, y): ...

    contract = contract_of("x(*S)? -> y(*S)", f)
    assert contract.bind({**arrays(y=(2,)), "x": None}) == {"S": (2,)}
    null = SimpleNamespace(shape=(0,), size=0)
    assert contract.bind({**arrays(y=(2,)), "x": null}) == {"S": (2,)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "contract of f: 'a' has neither a shape nor a kind"),
        ("a(M", r"contract of f: cannot read 'a\(M'. An argument looks like name\(M,N\)"),
        ("a:scaler", "contract of f: unknown kind 'scaler'. .*Did you mean 'scalar'?"),
        ("a(M) => arry", "contract of f: unknown result 'arry'. .*Did you mean 'array'?"),
        ("b(M)", r"contract of f: it speaks of \(b\), but the arguments are \(a\)"),
        ("a(M,N+1)", "contract of f: expected defined names in 'N\\+1', got N"),
        ("a(M)<K", "contract of f: expected defined names in 'K', got K"),
        ("a(M)+often", r"it speaks of \(a, often\), but the arguments are \(a\)"),
    ],
)
def test_mistakes_in_contracts_are_found_when_the_class_is_made(text, message):
    def f(self, a): ...

    with refuses(message):
        operation(text)(f)


def test_helpers_of_conditions():
    assert kept((2, 3), None) == (1, 1)
    assert kept((2, 3), -1) == (2, 1)
    assert all(reduces((2, 3), None, out) for out in [(), (1,), (1, 1)])
    assert not reduces((2, 3), None, (2,))
    assert all(reduces((2, 3), 0, out) for out in [(3,), (1, 3)])
    assert not any(reduces((2, 3), axis, (3,)) for axis in (1, 2, -3))
    assert [around(padding, 1) for padding in (2, (1, 2), (0, (3, 4)), [[1, 1], [0, 5]])] == [
        4, 4, 7, 5,
    ]  # fmt: skip
    assert sides(2, 3) == ((2, 2),) * 3
    assert sides([(0, 1), 2], 2) == ((0, 1), (2, 2))


def test_every_operation_has_a_contract_that_speaks_of_all_its_arguments():
    contracts = Handler.operations()
    assert {"dot_mm", "sum_add_t", "conv2d_backward_batch", "softmax_m"} <= contracts.keys()
    for name, contract in contracts.items():
        assert isinstance(contract, Contract)
        assert {a.name for a in contract.arguments} == set(contract.signature.parameters), name
        gives = any(a.written for a in contract.arguments) or contract.result
        assert gives or name == "pack_m", name  # which only prepares for other operations


#: Public methods of handlers that are not operations.
OTHERS = {
    *("operations", "info", "run_program", "clear", "compute", "repeated_dot_add"),
    *("call", "compile", "execute", "fail", "loop", "new_lane", "reserve", "trace", "tracing"),
}


def test_everything_public_on_handler_is_an_operation_that_is_documented():
    methods = inspect.getmembers(Handler, callable)
    public = {name for name, _ in methods if not name.startswith("_")} - {"array_type"}
    assert public == set(Handler.operations()) | OTHERS
    assert all(inspect.getdoc(getattr(Handler, name)) for name in Handler.operations())
    for cls in (NumpyHandler, NativeHandler, PyCudaHandler, DebugHandler):
        assert cls.operations() == Handler.operations()


def test_an_incomplete_handler_cannot_be_made():
    class Incomplete(Handler):
        pass

    with pytest.raises(TypeError, match=r"abstract method.*conv2d_forward_batch.*dot_mm"):
        Incomplete()
