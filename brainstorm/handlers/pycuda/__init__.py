"""The handler for NVIDIA GPUs; CUDA is not imported before one is created."""

from brainstorm.handlers.pycuda.pycuda_handler import PyCudaHandler

__all__ = ["PyCudaHandler"]
