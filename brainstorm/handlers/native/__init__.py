"""The fast handler for the CPU."""

from brainstorm.handlers.native.native_handler import NativeHandler, is_available

__all__ = ["NativeHandler", "is_available"]
