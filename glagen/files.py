"""Writing files so that nothing is lost: to a temporary name, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write whole or not at all. Raises OSError as the system does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def packaged(folder: str) -> Path:
    """Where `templates` or `specs` lie: beside the package in a checkout, within it once installed."""
    package = Path(__file__).parent
    return next(p for p in (package / folder, package.parent / folder) if p.is_dir())
