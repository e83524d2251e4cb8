"""The handler for NVIDIA GPUs; nothing of CUDA is imported before one is made."""

from brainstorm.handlers.pycuda.pycuda_handler import PyCudaHandler
from brainstorm.handlers.pycuda.sources import kernel_sources

__all__ = ["PyCudaHandler", "kernel_sources"]
