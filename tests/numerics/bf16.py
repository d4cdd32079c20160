"""bfloat16 in Triton's interpreter, rounded wherever a GPU rounds to it.

The interpreter has its bits as integers, which it multiplies as such in dots and cuts off where it should round; so
modules let float32 stand for that type there, and errors that come of its roundings do not show. Here it is float32
with as few bits, between a load or a cast and a store.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from glagen.loader import import_text
from tests.numerics.helpers import ROOT

STAND_IN = "tl.float32 if _INTERPRETED else tl.bfloat16"


def rounding(name: str) -> ModuleType:
    """The committed module of a spec, with bfloat16 as on a GPU. Changes the interpreter for all of this process."""
    if interpreter._get_np_dtype is not _numpy_type:
        interpreter._get_np_dtype = _numpy_type
        interpreter._validate_np_data_size = lambda *_: True  # 32 bits for a type of 16
        InterpreterBuilder.create_masked_load = _load
        InterpreterBuilder.create_masked_store = _store
        InterpreterBuilder.cast_impl = _cast
        InterpreterBuilder.create_bitcast = _bitcast
        InterpreterBuilder.get_bf16 = lambda _, value: TensorHandle(np.array([value], np.float32), tl.bfloat16)
    text = (ROOT / "generated" / f"{name}.py").read_text()
    assert STAND_IN in text
    return import_text(text.replace(STAND_IN, "tl.bfloat16"))


_plain_type, _plain_load = interpreter._get_np_dtype, InterpreterBuilder.create_masked_load
_plain_store, _plain_cast = InterpreterBuilder.create_masked_store, InterpreterBuilder.cast_impl
_plain_bitcast = InterpreterBuilder.create_bitcast


def _numpy_type(dtype: tl.dtype) -> np.dtype:
    return np.dtype(np.float32) if dtype.scalar == tl.bfloat16 else _plain_type(dtype)


def _load(self, pointers, mask, other, *options):
    if pointers.get_element_ty() != tl.bfloat16:
        return _plain_load(self, pointers, mask, other, *options)
    zeros = np.zeros_like(pointers.data, dtype=np.uint16)  # what all loads of modules have outside of tensors
    bits = interpreter._interpreter.load(pointers.data, mask.data, zeros, np.dtype(np.uint16))
    return TensorHandle(torch.from_numpy(bits).view(torch.bfloat16).float().numpy(), tl.bfloat16)


def _store(self, pointers, value, mask, *options):
    if pointers.get_element_ty() == tl.bfloat16:
        bits = torch.from_numpy(np.ascontiguousarray(value.data)).bfloat16().view(torch.uint16).numpy()
        value = TensorHandle(bits, tl.uint16)
    return _plain_store(self, pointers, value, mask, *options)


def _cast(self, source, wanted):
    if wanted.scalar == tl.bfloat16:
        single = torch.from_numpy(np.ascontiguousarray(source.data)).float()
        return TensorHandle(single.bfloat16().float().numpy(), tl.bfloat16)
    if source.dtype.scalar == tl.bfloat16:
        return TensorHandle(source.data.astype(_plain_type(wanted)), wanted.scalar)
    return _plain_cast(self, source, wanted)


def _bitcast(self, source, wanted):
    if wanted.scalar == tl.bfloat16:  # of the upper half of a float32's bits
        return TensorHandle((source.data.astype(np.uint32) << 16).view(np.float32), tl.bfloat16)
    return _plain_bitcast(self, source, wanted)
