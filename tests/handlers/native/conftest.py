"""Fixtures of the tests of the native handler."""

import pytest

from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.native.library import load
from brainstorm.handlers.native.products import has_half_products


@pytest.fixture
def native():
    """A handler with oneDNN."""
    library, reason = load()
    if library is None:
        pytest.skip(f"WITHOUT ONEDNN ITS USE IS NOT TESTED: {reason}")
    return NativeHandler(seed=1)


@pytest.fixture
def half(native):
    """A handler that rounds factors to bfloat16."""
    if not has_half_products(native._library):
        pytest.skip("THIS CPU HAS NO PRODUCTS IN BFLOAT16: THEY ARE NOT TESTED")
    return NativeHandler(seed=1, compute="bf16")


@pytest.fixture
def without(monkeypatch):
    """A handler without oneDNN."""
    monkeypatch.setenv("BRAINSTORM_ONEDNN", "off")
    return NativeHandler(seed=1)


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """No C compiler, and nothing that one has compiled before."""
    monkeypatch.setenv("CC", "no-such-compiler-here")
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path))


@pytest.fixture
def counted(monkeypatch):
    """The names of everything that oneDNN creates, in order."""
    library, _ = load()
    created = []
    if library is not None:
        for name in ("create", "describe"):
            original = getattr(library, name)

            def spy(kind, *args, _original=original, **kwargs):
                created.append(kind)
                return _original(kind, *args, **kwargs)

            monkeypatch.setattr(library, name, spy)
    return created
