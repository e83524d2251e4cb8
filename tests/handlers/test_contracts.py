"""The grammar of contracts: what is read, what is refused, how shapes are bound; who has one."""

import inspect
from types import SimpleNamespace

import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import DebugHandler, Handler, NativeHandler, NumpyHandler, PyCudaHandler
from brainstorm.handlers.argument_kinds import around, kept, reduces, sides
from brainstorm.handlers.contracts import Contract, operation


def contract_of(name, text, function, where=""):
    """Return the contract of an operation of this name, with the arguments of a function."""
    function.__name__ = name
    return operation(text, where)(function).contract


PRODUCT = contract_of(
    "product", "a(M,K)^transa b(K,N) -> out(M,N)+", lambda self, a, b, out, transa=False: None
)


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
    text = "-1<=v(M,1)<N*2 w(1,N)|(M,1)? s:scalar ~> out(M,N)+add => bool"
    contract = contract_of("marked", text, lambda self, v, w, s, out, add=True: None)
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


JOINED = contract_of("joined", "a(*S,M) b(*S,N) -> out(*S,M+N)", lambda self, a, b, out: None)
PADDED = contract_of(
    "padded", "a(M) pad:int -> b(N)", lambda self, a, pad, b: None, "N == M + 2*pad; M > 1"
)
AROUND = contract_of("around", "a(M,*S,N)", lambda self, a: None)
TURNED = contract_of("turned", "a(M) b(M,3)^t", lambda self, a, b, t: None)
OPTIONAL = contract_of("optional", "x(*S)? -> y(*S)", lambda self, x, y: None)
FACTORS = arrays(a=(2, 3), b=(3, 4), out=(2, 4))
ONES = arrays(a=(1, 1), b=(1, 1), out=(1, 1))


@pytest.mark.parametrize(
    ("contract", "values", "expected"),
    [
        (PRODUCT, {**FACTORS, "transa": False}, {"M": 2, "K": 3, "N": 4}),
        (PRODUCT, {**ONES, "transa": True}, {"M": 1, "K": 1, "N": 1}),
        (PRODUCT, {**FACTORS, **arrays(a=(3, 2)), "transa": True}, {"M": 2, "K": 3, "N": 4}),
        (PRODUCT, {**FACTORS, **arrays(a=(3, 2)), "transa": False},
         r"'b': expected shape \(K=2, N\), got \(3, 4\)"),
        (PRODUCT, {**FACTORS, **arrays(a=(2,)), "transa": False},
         r"'a': expected shape \(M, K\), got \(2,\)$"),
        (TURNED, {**arrays(a=(2,), b=(2, 3)), "t": True},
         r"'b': expected shape \(3, M=2\), got \(2, 3\)"),
        (JOINED, arrays(a=(2,), b=(1,), out=(3,)), {"S": (), "M": 2, "N": 1}),
        (JOINED, arrays(a=(7, 8, 2), b=(7, 8, 1), out=(7, 8, 3)), {"S": (7, 8), "M": 2, "N": 1}),
        (JOINED, arrays(a=(7, 2), b=(7, 1), out=(7, 4)),
         r"^joined\(a, b, out\): argument 'out': expected shape \(\*S=\(7,\), M\+N=3\), got "
         r"\(7, 4\); sizes given by 'a' \(7, 2\), 'b' \(7, 1\)$"),
        (AROUND, arrays(a=(2,)), r"expected shape \(M, \*S, N\), got \(2,\)"),
        (PADDED, {**arrays(a=(2,), b=(4,)), "pad": 1}, {"M": 2, "N": 4}),
        (PADDED, {**arrays(a=(2,), b=(5,)), "pad": 1},
         r"^padded\(a, pad, b\): expected N == M \+ 2\*pad, got pad=1, M=2, N=5; "
         r"sizes given by 'a' \(2,\), 'b' \(5,\)$"),
        (PADDED, {**arrays(a=(1,), b=(3,)), "pad": 1}, "expected M > 1, got M=1"),
        (OPTIONAL, {**arrays(y=(2,)), "x": None}, {"S": (2,)}),
        (OPTIONAL, {**arrays(y=(2,)), "x": SimpleNamespace(shape=(0,), size=0)}, {"S": (2,)}),
    ],
)  # fmt: skip
def test_symbols_are_bound_to_sizes_or_a_mistake_is_told(contract, values, expected):
    if isinstance(expected, str):
        with refuses(expected):
            contract.bind(values)
    else:
        assert contract.bind(values) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "contract of of_one: 'a' has neither a shape nor a kind"),
        ("a(M", r"contract of of_one: cannot read 'a\(M'. An argument looks like name\(M,N\)"),
        ("a:scaler", "contract of of_one: unknown kind 'scaler'. .*Did you mean 'scalar'?"),
        ("a(M) => arry", "contract of of_one: unknown result 'arry'. .*Did you mean 'array'?"),
        ("b(M)", r"contract of of_one: it speaks of \(b\), but the arguments are \(a\)"),
        ("a(M,N+1)", "contract of of_one: expected defined names in 'N\\+1', got N"),
        ("a(M)<K", "contract of of_one: expected defined names in 'K', got K"),
        ("a(M)+often", r"it speaks of \(a, often\), but the arguments are \(a\)"),
    ],
)
def test_mistakes_in_contracts_are_found_when_the_class_is_made(text, message):
    with refuses(message):
        contract_of("of_one", text, lambda self, a: None)


def test_helpers_of_conditions():
    assert kept((2, 3), None) == (1, 1)
    assert kept((2, 3), -1) == (2, 1)
    assert all(reduces((2, 3), None, out) for out in [(), (1,), (1, 1)])
    assert not reduces((2, 3), None, (2,))
    assert all(reduces((2, 3), 0, out) for out in [(3,), (1, 3)])
    assert not any(reduces((2, 3), axis, (3,)) for axis in (1, 2, -3))
    paddings = (2, (1, 2), (0, (3, 4)), [[1, 1], [0, 5]])
    assert [around(padding, 1) for padding in paddings] == [4, 4, 7, 5]
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
