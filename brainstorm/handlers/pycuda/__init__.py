"""The handler for NVIDIA GPUs; nothing of CUDA is imported before one is made."""

from brainstorm.handlers.pycuda.pycuda_handler import PyCudaHandler

__all__ = ["PyCudaHandler"]
