"""The fast handler for the CPU."""

from brainstorm.handlers.native.native_handler import NativeHandler

__all__ = ["NativeHandler"]
