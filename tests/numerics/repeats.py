"""Runs that are recorded and repeated, in Triton's interpreter: what a module does on a GPU for calls alike.

There kernels take addresses. Here what stands for a compiled kernel makes tensors of these, as those of the recorded
run lay in memory, and sees to it that each is in one that is there: memory that went back may be another's.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton


class _Kernel:
    """A launch, as `_launch` finds it built."""

    packed_metadata = None

    def __init__(
        self, kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any], live: dict[int, int]
    ) -> None:
        self.kernel, self.constants, self.live = kernel, constants, live
        self.arguments = [x.detach().to("meta") if isinstance(x, torch.Tensor) else None for x in arguments]

    def run(self, programs: int, _y: int, _z: int, _stream: int, *given: Any) -> None:
        """As a compiled kernel's launcher: after what is none of the kernel's, addresses and numbers."""
        taken = zip(self.arguments, given[-len(self.arguments) :], strict=True)
        self.kernel[(programs,)](*(x if like is None else self._tensor(x, like) for like, x in taken), **self.constants)

    def _tensor(self, address: int, like: torch.Tensor) -> torch.Tensor:
        if not like.numel():
            return torch.empty(like.shape, dtype=like.dtype)
        extent = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
        end = address + extent * like.element_size()
        assert any(first <= address and end <= first + size for first, size in self.live.items()), "memory went back"
        memory = (ctypes.c_char * (end - address)).from_address(address)
        return torch.frombuffer(memory, dtype=like.dtype, count=extent).as_strided(like.shape, like.stride())


@contextmanager
def repeating(module: ModuleType) -> Iterator[list[object]]:
    """A module that records runs, and repeats them, meanwhile; gives those that it repeated, one for each time."""
    live: dict[int, int] = {}
    repeated: list[object] = []
    empty, repeat = torch.empty, module._repeated

    def registered(x: torch.Tensor) -> torch.Tensor:
        if x.numel() and x.data_ptr() not in live:
            live[x.data_ptr()] = x.untyped_storage().nbytes()
            weakref.finalize(x, live.pop, x.data_ptr(), None)
        return x

    def launch(
        kernel: Any,
        programs: int,
        device: torch.device,
        *arguments: Any,
        config: dict[str, Any] | None = None,
        passes: tuple[dict[str, Any], ...] = ({},),
        **constants: Any,
    ) -> None:
        each = [more | constants | (config or {}) for more in passes]
        if (record := getattr(module._of_thread, "record", None)) is not None:
            ready = [(_Kernel(kernel, arguments, x, live), x.get("SHARE", 1), []) for x in each]
            record.launched(ready, programs, arguments)
        module._launch_by_triton(kernel, programs, arguments, each)

    def alike_in(run: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        others = [tuple(x) if isinstance(x, list) else x for x in given if not isinstance(x, torch.Tensor)]
        return run, *((x.shape, x.stride(), x.dtype) for x in tensors), *others

    def again(record: Any, given: tuple[Any, ...]) -> Any:
        repeated.append(record)
        for x in given:
            if isinstance(x, torch.Tensor):
                registered(x)
        return repeat(record, given)

    changes = {
        "_launch": launch,
        "_alike_in": alike_in,
        "_repeated": again,
        "_launcher": lambda compiled: (compiled.run, ()),
        "_records": {},
    }
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda _: 0))
    with (
        mock.patch.multiple(module, **changes),
        mock.patch.object(torch, "empty", lambda *shape, **given: registered(empty(*shape, **given))),
        mock.patch.object(triton.runtime, "driver", driver),
    ):
        yield repeated
