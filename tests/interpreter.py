"""Triton's interpreter without work whose results it throws away or has had: most of what small kernels take."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np


def spare_the_interpreter() -> None:
    """Have Triton's interpreter do less to the same end, in this process.

    Requires: TRITON_INTERPRET=1, before triton was imported. What another version of Triton does is left alone.
    """
    import triton
    from triton.runtime import interpreter

    known = triton.__version__.startswith("3.7.")
    if known:
        _patch_once(interpreter)
        _describe_types_once(interpreter)
    options = interpreter.interpreter_builder.options
    if not options.debug:  # sums of integers are made again in int64 then, and no assertion looks at them
        if known:
            _compute_at_once(interpreter)
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


def _patch_once(interpreter: Any) -> None:
    """A launch, and every function that its kernel calls, looks through the whole language to put the interpreter's
    functions in the place of triton.language's; a launch puts those back at its end. In this process they may stay."""
    language, semantic = interpreter.tl, interpreter.interpreter_semantic
    patch, patched = interpreter._patch_lang, set()

    @functools.cache
    def seen(fn: Callable) -> tuple[bool, bool]:
        """The modules of the language that a function sees are those that are patched for it."""
        modules = [id(x) for x in fn.__globals__.values()]
        return id(language) in modules, id(language.core) in modules

    def patch_once(fn: Callable) -> Any:
        if seen(fn) not in patched:
            patched.add(seen(fn))
            patch(fn)
        return interpreter._LangPatchScope()  # of nothing that were to be put back

    def patch_attr(obj: Any, name: str, member: Callable, builder: Any, scope: Any) -> None:
        function = inspect.unwrap(member)

        def called(*given: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*given, **named)

        scope.set_attr(obj, name, called)

    interpreter._patch_lang, interpreter._patch_attr = patch_once, patch_attr


def _describe_types_once(interpreter: Any) -> None:
    """Every value has a type and a shape, which are made, named and checked for each: here once for all that are of the
    same elements and extents."""
    core = interpreter.tl.core
    constexpr, whole_type, numpy_type = core.constexpr, core.block_type.__init__, interpreter._get_np_dtype
    types: dict[tuple, dict] = {}
    numpy_types: dict[str, Any] = {}

    @functools.cache
    def shape_of(extents: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([constexpr(n) for n in extents]), constexpr(math.prod(extents))

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(x.value if type(x) is constexpr else x for x in shape))
        if key in types:
            vars(self).update(types[key], element_ty=element_ty)
        else:
            whole_type(self, element_ty, shape)
            types[key] = dict(vars(self))

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shape_of((*type.shape.values,) if type.is_block() else ())

    def get_numpy_type(type: Any) -> Any:
        scalar = type.scalar
        if scalar.name not in numpy_types:
            numpy_types[scalar.name] = numpy_type(scalar)
        return numpy_types[scalar.name]

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor
    interpreter._get_np_dtype = get_numpy_type


def _compute_at_once(interpreter: Any) -> None:
    """Operands are given one type and one shape by several operations, of which most find them so, or make what numpy's
    broadcasting would. Here it does, for operands of one type, and for numbers beside those of that kind."""
    core, semantic = interpreter.tl.core, type(interpreter.interpreter_semantic)
    tensor, handle = core.tensor, interpreter.TensorHandle
    floats = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
    integers = {"int32": np.int32, "int64": np.int64}
    unwrap, expand, where = core._unwrap_if_constexpr, semantic.expand_dims, semantic.where
    plain = {tensor, core.dtype, core.block_type, core.pointer_type, int, float, bool, str, slice, type(None)}

    def unwrap_if_constexpr(o: Any) -> Any:
        return o.value if type(o) is core.constexpr else o if type(o) in plain else unwrap(o)

    def operands(x: Any, y: Any, kinds: dict) -> tuple:
        """Their type, and what numpy takes; or nothing."""
        kind = x.dtype if type(x) is tensor else getattr(y, "dtype", None)
        if kind is None or kind.name not in kinds:
            return ()
        found = [kind]
        for z in (x, y):
            if type(z) is tensor and z.dtype is kind:
                found.append(z.handle.data)
            elif type(z) is tensor and {kind.name, z.dtype.name} == {*integers}:
                found[0] = interpreter.tl.int64
                found.append(z.handle.data)
            elif (type(z) is int and kind.name != "int1") or (type(z) is float and kind.name in floats):
                found.append(kinds[kind.name](z))
            else:
                return ()
        return tuple(found)

    def made(data: Any, kind: Any, *of: Any) -> Any:
        for x in of:
            if type(x) is tensor and x.type is not x.dtype:
                return tensor(handle(data, kind), core.block_type(kind, [*data.shape]))
        return tensor(handle(data, kind), kind)

    def at_once(name: str, function: Callable, kinds: dict, kind: Any = None) -> None:
        usual = getattr(semantic, name)

        def compute(self: Any, x: Any, y: Any, *more: Any, **given: Any) -> Any:
            if found := operands(x, y, kinds):
                return made(function(*found[1:]), kind or found[0], x, y)
            return usual(self, x, y, *more, **given)

        setattr(semantic, name, compute)

    def choose(self: Any, condition: Any, x: Any, y: Any) -> Any:
        if condition.dtype is interpreter.tl.int1 and (found := operands(x, y, floats | integers)):
            return made(np.where(condition.handle.data, *found[1:]), found[0], condition, x, y)
        return where(self, condition, x, y)

    def add(self: Any, x: Any, y: Any, *more: Any, **given: Any) -> Any:
        if type(x) is type(y) is tensor and x.dtype.is_ptr() and y.dtype.name in integers:
            return made(self.builder.create_addptr(x.handle, y.handle).data, x.dtype, x, y)
        return added(self, x, y, *more, **given)

    def expand_dims(self: Any, x: Any, axis: int) -> Any:
        if not x.type.is_block() or axis < 0:
            return expand(self, x, axis)
        shape = x.handle.data.shape
        return made(x.handle.data.reshape(*shape[:axis], 1, *shape[axis:]), x.dtype, x)

    def quotient(x: Any, y: Any) -> Any:
        return (x - np.fmod(x, y)) // y

    for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items():
        at_once(name, function, floats | integers)
    for name in ("less_than", "less_equal", "greater_than", "greater_equal", "equal", "not_equal"):
        at_once(name, getattr(np, name.removesuffix("_than")), floats | integers, interpreter.tl.int1)
    for name, function in {"and_": np.bitwise_and, "or_": np.bitwise_or}.items():
        at_once(name, function, integers | {"int1": np.bool_})
    for name, function in {"floordiv": quotient, "mod": np.fmod}.items():
        at_once(name, function, integers)
    added = semantic.add
    core._unwrap_if_constexpr = unwrap_if_constexpr
    semantic.add, semantic.where, semantic.expand_dims = add, choose, expand_dims
