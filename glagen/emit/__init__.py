"""Schedule -> text: one module with Triton kernels, the PyTorch form and the autograd wrappers."""

from __future__ import annotations

from glagen.emit.composite import emit_composite
from glagen.emit.module import checksum, emit, is_of, is_ours

__all__ = ["checksum", "emit", "emit_composite", "is_of", "is_ours"]
