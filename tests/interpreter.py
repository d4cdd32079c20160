"""Triton's interpreter without work whose results it throws away or has had: most of what small kernels take."""

from __future__ import annotations

import functools
import inspect
import linecache
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

# What the language calls an operation on two values: its operators, and whether what has one stands on the right.
OPERATORS = {
    **{name: {f"__{name}__": False, f"__r{name}__": True} for name in ("add", "sub", "mul", "floordiv", "mod")},
    **{f"{name}_": {f"__{name}__": False, f"__r{name}__": True} for name in ("and", "or")},
    "less_than": {"__lt__": False},
    "less_equal": {"__le__": False},
    "greater_than": {"__gt__": False},
    "greater_equal": {"__ge__": False},
    "equal": {"__eq__": False},
    "not_equal": {"__ne__": False},
}


def spare_the_interpreter() -> None:
    """Have Triton's interpreter do less to the same end, in this process.

    Requires: TRITON_INTERPRET=1, before triton was imported. What another version of Triton does is left alone.
    """
    import triton
    from triton.runtime import interpreter

    known = triton.__version__.startswith("3.7.")
    if known:
        _patch_once(interpreter)
        _rewrite_once(interpreter)
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


def _rewrite_once(interpreter: Any) -> None:
    """A function is read from its module's file and written anew, for each module that has it: here once for all that
    are the same. (The file and the line that a traceback names are those of the first.)"""
    rewriter = interpreter.FunctionRewriter
    rewrite, codes = rewriter.rewrite_ast, {}

    def rewrite_once(self: Any) -> Callable:
        text = _text_of(self.fn)
        if text is None:
            return rewrite(self)
        if text not in codes:
            self.filename, self.def_file_lineno = self.fn.__code__.co_filename, self.fn.__code__.co_firstlineno
            codes[text] = compile(self._transform_ast(text), self.filename, "exec")
        found = dict(self.kwargs)
        for name, value in vars(interpreter).items():
            self.fn.__globals__.setdefault(name, value)
        exec(codes[text], self.fn.__globals__, found)
        return found[self.fn.__name__]

    rewriter.rewrite_ast = rewrite_once


def _text_of(fn: Callable) -> str | None:
    """A function as it stands at the left of its file, without decorators; None if it does not."""
    lines = linecache.getlines(fn.__code__.co_filename)[fn.__code__.co_firstlineno - 1 :]
    start = next((n for n, line in enumerate(lines) if not line.startswith("@")), len(lines))
    if not lines[start:] or not lines[start].startswith("def "):
        return None
    ends = (n for n, line in enumerate(lines) if n > start and line[0] not in " \n)")
    return "".join(lines[start : next(ends, len(lines))])


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
    broadcasting would. Here it does, for operands of one type, and for numbers beside those of that kind; operators
    do not ask the language first. What comes of it is described once for all that are of the same type and shape."""
    core, semantic = interpreter.tl.core, type(interpreter.interpreter_semantic)
    tensor, handle, constexpr = core.tensor, interpreter.TensorHandle, core.constexpr
    floats = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
    integers = {"int32": np.int32, "int64": np.int64}
    unwrap, expand, where = core._unwrap_if_constexpr, semantic.expand_dims, semantic.where
    plain = {tensor, core.dtype, core.block_type, core.pointer_type, int, float, bool, str, slice, type(None)}

    def unwrap_if_constexpr(o: Any) -> Any:
        return o.value if type(o) is constexpr else o if type(o) in plain else unwrap(o)

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

    described: dict[tuple, tuple] = {}
    new = object.__new__

    def made(data: Any, kind: Any, *of: Any) -> Any:
        shape = None
        for x in of:
            if type(x) is tensor and x.type is not x.dtype:
                shape = data.shape
        key = kind.name, shape
        if key not in described:
            like = tensor(handle(data, kind), kind if shape is None else core.block_type(kind, [*shape]))
            described[key] = like.type, like.shape, like.numel
        result, of_numpy = new(tensor), new(handle)
        of_numpy.data, of_numpy.dtype, of_numpy.attr = data, kind, {}
        result.handle, result.dtype = of_numpy, kind
        result.type, result.shape, result.numel = described[key]
        return result

    def at_once(name: str, function: Callable, kinds: dict, kind: Any = None) -> None:
        usual = getattr(semantic, name)

        def compute(self: Any, x: Any, y: Any, *more: Any, **given: Any) -> Any:
            if found := operands(x, y, kinds):
                return made(function(*found[1:]), kind or found[0], x, y)
            return usual(self, x, y, *more, **given)

        setattr(semantic, name, compute)
        if name.endswith(("than", "equal")):  # a number beside them is of 32 bits, whatever they are
            kinds = {n: x for n, x in kinds.items() if n in ("fp32", "int32", "int64")}
        for operator, turned in OPERATORS[name].items():
            operators[operator] = functools.partial(of_operator, function, kinds, kind, turned)

    def of_operator(function: Callable, kinds: dict, kind: Any, turned: bool, usual: Callable) -> Callable:
        def compute(x: Any, y: Any) -> Any:
            y = y.value if type(y) is constexpr else y
            if found := operands(y, x, kinds) if turned else operands(x, y, kinds):
                return made(function(*found[1:]), kind or found[0], x, y)
            return usual(x, y)

        return compute

    def of_index(usual: Callable) -> Callable:
        def get(x: Any, index: Any) -> Any:
            if type(index) is tuple and x.type is not x.dtype and all(n is None or n == slice(None) for n in index):
                return made(x.handle.data[index], x.dtype, x)
            return usual(x, index)

        return get

    def of_conversion(usual: Callable) -> Callable:
        def convert(x: Any, kind: Any, *more: Any, **given: Any) -> Any:
            return x if x.dtype is kind else usual(x, kind, *more, **given)

        return convert

    operators: dict[str, Callable] = {"__getitem__": of_index, "to": of_conversion}
    patch = interpreter._patch_attr

    def patch_attr(obj: Any, name: str, member: Callable, builder: Any, scope: Any) -> None:
        patch(obj, name, member, builder, scope)
        if obj is tensor and name in operators:
            scope.set_attr(obj, name, operators[name](getattr(obj, name)))

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

    def broadcast(self: Any, x: Any, y: Any) -> Any:
        if not (x.type.is_block() and y.type.is_block()):
            return spread(self, x, y)
        shape = np.broadcast_shapes(x.handle.data.shape, y.handle.data.shape)
        return tuple(
            z if z.handle.data.shape == shape else made(np.broadcast_to(z.handle.data, shape), z.dtype, z)
            for z in (x, y)
        )

    def dot(self: Any, x: Any, y: Any, accumulator: Any, precision: Any, imprecise: Any, kind: Any) -> Any:
        if accumulator is None and x.dtype is y.dtype and x.dtype.name in ("fp16", "fp32") and kind.name == "fp32":
            return made(np.matmul(x.handle.data, y.handle.data, dtype=np.float32) + np.float32(0), kind, x)
        return multiplied(self, x, y, accumulator, precision, imprecise, kind)

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
    added, spread, multiplied = semantic.add, semantic.broadcast_impl_value, semantic.dot
    semantic.broadcast_impl_value, semantic.dot = broadcast, dot
    core._unwrap_if_constexpr, interpreter._patch_attr = unwrap_if_constexpr, patch_attr
    semantic.add, semantic.where, semantic.expand_dims = add, choose, expand_dims
