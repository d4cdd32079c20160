"""glagen: compiles short specs of gated linear recurrences to verified, readable, fast Triton kernels."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["InternalError", "Options", "Source", "SpecError", "compile_spec", "load"]

_HOMES = {
    "InternalError": "glagen.errors",
    "Source": "glagen.errors",
    "SpecError": "glagen.errors",
    "Options": "glagen.ir.schedule",
    "compile_spec": "glagen.pipeline",
    "load": "glagen.loader",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when asked for: the stages import the version from here."""
    if name not in _HOMES:
        raise AttributeError(f"module 'glagen' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
