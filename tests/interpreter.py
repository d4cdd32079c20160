"""Triton's interpreter without work whose results it throws away: more than half of what small kernels take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def spare_the_interpreter() -> None:
    """Have Triton's interpreter do less to the same end, in this process.

    Requires: TRITON_INTERPRET=1, before triton was imported. What another version of Triton does is left alone.
    """
    from triton.runtime import interpreter

    if hasattr(interpreter, "_LangPatchScope"):
        _patch_once_a_launch(interpreter)
    options = interpreter.interpreter_builder.options
    if not options.debug:  # sums of integers are made again in int64 then, and no assertion looks at them
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


def _patch_once_a_launch(interpreter: Any) -> None:
    """A launch puts the interpreter's functions in the place of triton.language's, and those back at its end. Every
    function that a kernel calls does the former too: it looks through the whole language, and finds them there."""
    language = interpreter.tl
    patch, patched = interpreter._patch_lang, set()  # since the launch began

    class Scope(interpreter._LangPatchScope):
        def restore(self) -> None:  # of a launch: nobody keeps the others
            patched.clear()
            super().restore()

    @functools.cache
    def seen(fn: Callable) -> tuple[bool, bool]:
        """The modules of the language that a function sees are those that are patched for it."""
        modules = [id(x) for x in fn.__globals__.values()]
        return id(language) in modules, id(language.core) in modules

    def patch_once(fn: Callable) -> Any:
        if seen(fn) in patched:
            return Scope()
        patched.add(seen(fn))
        return patch(fn)

    interpreter._LangPatchScope, interpreter._patch_lang = Scope, patch_once
