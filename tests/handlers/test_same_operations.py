"""Every handler has exactly the operations that `Handler` declares, with the same arguments."""

from __future__ import annotations

import inspect

import pytest

from brainstorm.handlers import DebugHandler, Handler, NativeHandler, NumpyHandler, PyCudaHandler

#: Public methods of handlers that are not operations.
OTHERS = {
    *("operations", "info", "run_program", "clear", "compute", "repeated_dot_add"),
    *("call", "compile", "execute", "loop", "new_lane", "reserve", "trace", "tracing"),
}


def public_methods(cls):
    found = inspect.getmembers(cls, callable)
    return {name for name, _ in found if not name.startswith("_")} - {"array_type"}


def test_everything_public_on_handler_is_an_operation():
    assert public_methods(Handler) == set(Handler.operations()) | OTHERS


@pytest.mark.parametrize("cls", [NumpyHandler, NativeHandler, PyCudaHandler, DebugHandler])
def test_same_operations(cls):
    assert public_methods(cls) == public_methods(Handler)
    assert cls.operations() == Handler.operations()


@pytest.mark.parametrize("name", sorted(Handler.operations()))
@pytest.mark.parametrize("cls", [NumpyHandler, NativeHandler, PyCudaHandler, DebugHandler])
def test_same_arguments_and_defaults(cls, name):
    def arguments(of):
        parameters = inspect.signature(getattr(of, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert arguments(cls) == arguments(Handler)


@pytest.mark.parametrize("name", sorted(Handler.operations()))
def test_every_operation_is_documented(name):
    assert inspect.getdoc(getattr(Handler, name))


def test_an_incomplete_handler_cannot_be_made():
    class Incomplete(Handler):
        pass

    with pytest.raises(TypeError, match=r"abstract method.*conv2d_forward_batch.*dot_mm"):
        Incomplete()
