"""Ahead-of-time compilation: every kernel of a module for a GPU that need not be here, and what it costs there."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from glagen.ir.document import Document

# Shared memory a block may use, in bytes (CUDA C++ programming guide, "Technical Specifications per Compute
# Capability"; for gfx942 the 64 KiB of LDS of a compute unit).
SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
LDS = 64 * 1024
# What becomes of chunk states, and what a module is to take the GPU for, so that it launches all of its kernels: in
# memory; on chip, many and few programs; on chip in the walk back as well, if it ever is; in memory, in pieces of a
# sequence.
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("saved", {}),
    ("recomputed", {}),
    ("recomputed", {"_multiprocessors": lambda: 2}),
    ("saved", {"_multiprocessors": lambda: 1}),
    ("saved", {"_multiprocessors": lambda: 10**6, "LONG": 1, "PIECE": 1}),
)
LAUNCH_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
}


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel compiled for a target.

    `spills` in bytes of local memory a thread; `mma` lists tensor-core opcodes; `fused` counts additions
    of what another thread has that a multiplication is fused with; `from_registers` wgmma with an operand in registers;
    `waits`: may be launched while the kernel before it ends.
    """

    kernel: str
    dtype: str
    K: int
    V: int
    shared: int
    shared_limit: int
    registers: int
    spills: int
    mma: tuple[str, ...]
    fused: int
    from_registers: int
    waits: bool

    @property
    def fits(self) -> bool:
        return self.shared <= self.shared_limit


def parse_target(name: str) -> Any:
    """`sm_90` or `gfx942` to Triton's GPUTarget. Raises ValueError for other names."""
    from triton.backends.compiler import GPUTarget

    if match := re.fullmatch(r"sm_(\d+)", name):
        capability = int(match.group(1))
        if capability in SHARED_MEMORY:
            return GPUTarget("cuda", capability, 32)
    if name == "gfx942":
        return GPUTarget("hip", "gfx942", 64)
    raise ValueError(f"unknown target {name!r}: expected sm_80, sm_86, sm_89, sm_90, sm_100, sm_120 or gfx942")


def build(module: ModuleType, document: Document, target: str, dtype: torch.dtype, K: int, V: int) -> list[Built]:
    """Compile the kernels that `module`'s op launches for head sizes K and V. Needs triton, not interpreted; no GPU."""
    gpu = parse_target(target)
    capability = gpu.arch // 10 if gpu.backend == "cuda" else 0
    calls = launches(module, document, dtype, K, V, capability)
    with _pretend(module, capability):
        return [_compile(module, call, gpu, dtype, K, V) for call in calls]


@dataclass(frozen=True, slots=True)
class Launch:
    """One recorded launch."""

    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, Any]


def launches(
    module: ModuleType, document: Document, dtype: torch.dtype, K: int, V: int, capability: int
) -> list[Launch]:
    """What the op launches, forward and backward in each of its ways, and a step: recorded on CPU tensors, not run."""
    from triton.runtime.jit import JITFunction

    found: dict[tuple[Any, ...], Launch] = {}

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        told = ("STRONG", "PEEK", "FAR", "LATER", "TMA", "num_warps", "maxnreg")
        one = self.fn.__name__, *(options.get(name) for name in told)
        found.setdefault(one, Launch(self, args, options))

    op, step = getattr(module, document.name), getattr(module, f"{document.name}_step")
    sizes = {"t": 2 * module.CHUNK, "i": K, "s": K // 2 + 1, "j": V}
    scalars = {d.name: 1.0 for d in document.declarations if d.kind == "scalar" and d.default is None}
    given, start = _zeros(document, sizes, dtype)
    with mock.patch.object(JITFunction, "run", record), _pretend(module, capability):
        for states, gpu in WAYS:
            with mock.patch.dict(vars(module), gpu):
                *outputs, last = op(**given, **scalars, initial_state=start, output_final_state=True, states=states)
                outputs += last if isinstance(last, tuple) else [last]
                torch.autograd.backward(outputs, [torch.zeros_like(o) for o in outputs])
        timed = {d.name for d in document.declarations if d.timed}
        with torch.no_grad():
            step(**{n: x[:, 0] if n in timed else x for n, x in given.items()}, **scalars, state=start)
    return list(found.values())


def _zeros(document: Document, sizes: dict[str, int], dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], Any]:
    """Arguments of an op by name, one sequence and two heads; and its initial state, or states."""
    given = {}
    for d in document.declarations:
        if d.kind != "scalar":
            lead = [1, sizes["t"], 2] if d.timed else [2]
            shape = [*lead, *(sizes[a] for a in d.axes if a != "t")]
            given[d.name] = torch.zeros(shape, dtype=dtype, requires_grad=d.differentiable)
    starts = tuple(torch.zeros(1, 2, *(sizes[a] for a in s.axes), requires_grad=True) for s in document.states)
    return given, starts if len(starts) > 1 else starts[0]


@contextlib.contextmanager
def _pretend(module: ModuleType, capability: int) -> Iterator[None]:
    """CPU tensors take the kernels' path, as on a GPU of this major compute capability (0: from AMD), meanwhile."""
    module._wgmma_is_sound.cache_clear()
    with (
        mock.patch.object(module, "_on_triton", lambda x: True),
        mock.patch.object(module, "_capability", lambda: capability),
        mock.patch.object(torch.version, "hip", None if capability else "any"),
    ):
        yield
    module._wgmma_is_sound.cache_clear()


def _aimed_at(gpu: Any) -> Any:
    """Kernels that ask for the GPU are told this one, meanwhile."""

    def current_target() -> Any:
        return gpu

    current_target.__triton_builtin__ = True  # type: ignore[attr-defined]
    return mock.patch("triton.language.target_info.current_target", current_target)


def _compile(module: ModuleType, call: Launch, gpu: Any, dtype: torch.dtype, K: int, V: int) -> Built:
    import triton
    from triton.compiler import ASTSource

    kernel = call.kernel
    options = dict(call.options)
    launch_options = {name: options.pop(name) for name in LAUNCH_OPTIONS if name in options}
    bound = dict(zip([p.name for p in kernel.params], call.args, strict=False)) | options
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for n, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[(n,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{TYPES[value.dtype]}"
            attributes[(n,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constants, attributes)
    limit = SHARED_MEMORY[gpu.arch] if gpu.backend == "cuda" else LDS
    sound = module._wgmma_is_sound(kernel.fn.__name__, call.options.get("DOT"))
    with module._building(sound), _aimed_at(gpu):
        compiled = triton.compile(source, target=gpu, options=launch_options)
        while compiled.metadata.shared > limit and launch_options.get("num_stages", 1) > 1:  # as `_fitting` there does
            launch_options["num_stages"] -= 1
            compiled = triton.compile(source, target=gpu, options=launch_options)
        while module._runs_over(compiled.asm.get("ptx", "")):  # as `_loaded` there does
            launch_options["num_warps"] = 2 * launch_options.get("num_warps", 4)
            compiled = triton.compile(source, target=gpu, options=launch_options)
        registers, spills, mma = _machine_code(compiled) if gpu.backend == "cuda" else (0, 0, ())
        if registers == 32 and spills:  # as `_loaded` there does
            compiled = triton.compile(source, target=gpu, options=launch_options | {"maxnreg": 255})
            registers, spills, mma = _machine_code(compiled)
    shared, ptx = compiled.metadata.shared, compiled.asm.get("ptx", "")
    from_registers = len(re.findall(r"wgmma\.mma_async[^;]*\}, \{", ptx))
    fused, waits = _fused(ptx), "griddepcontrol.wait" in ptx
    return Built(
        kernel.fn.__name__, TYPES[dtype], K, V, shared, limit, registers, spills, mma, fused, from_registers, waits
    )


def _fused(ptx: str) -> int:
    """How many fused multiply-adds take what a shuffle between threads gives."""
    shuffled = set(re.findall(r"shfl\.sync\.\w+\.b32\s+(%r\d+)", ptx))
    return sum(bool(shuffled & set(line)) for line in map(re.compile(r"%r\d+").findall, re.findall(r"fma\.rn.*", ptx)))


def _machine_code(compiled: Any) -> tuple[int, int, tuple[str, ...]]:
    """Registers a thread, bytes of local memory, and the tensor-core opcodes of a cubin."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = _run(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin))
        code = _run(knobs.nvidia.nvdisasm.path, "--print-code", "--no-dataflow", str(cubin))
    registers = int(re.search(r"REG:(\d+)", usage).group(1))  # type: ignore[union-attr]
    local = sum(int(n) for n in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))
    opcodes = sorted(set(re.findall(r"\b((?:D|H|Q|I|UTCH|UTC)G?MMA)\b", code)))
    return registers, local, tuple(opcodes)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
