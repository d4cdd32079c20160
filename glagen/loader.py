"""Compile a spec and import the result."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType

from glagen.emit import checksum
from glagen.errors import Source
from glagen.files import write_text
from glagen.ir.schedule import Options
from glagen.parse import read
from glagen.pipeline import compile_spec

_IMPORTING = threading.RLock()


def load(spec: str | os.PathLike[str] | Source, options: Options | None = None) -> ModuleType:
    """The module of a spec, given by path or as a Source.

    The text lies in a cache (GLAGEN_CACHE, or glagen under the user's cache folder) under its own checksum, so that
    Triton finds its source and a changed spec or compiler never meets an old module. Raises SpecError.
    """
    source = spec if isinstance(spec, Source) else read(Path(spec))
    return import_text(compile_spec(source, options))


def import_text(text: str) -> ModuleType:
    """Import a generated module from its text; the same text gives the same module object."""
    key = f"glagen_generated_{checksum(text)}"
    with _IMPORTING:  # what another thread is importing is there, but not whole
        if key in sys.modules:
            return sys.modules[key]
        path = cache_folder() / f"{key}.py"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
        return import_path(path, key)


def import_path(path: Path, name: str) -> ModuleType:
    """Import the module at `path` under `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def cache_folder() -> Path:
    """Where modules made by `load` lie."""
    if os.environ.get("GLAGEN_CACHE"):
        return Path(os.environ["GLAGEN_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "glagen"
