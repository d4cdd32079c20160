"""Launches: Python that configures a kernel, makes what it needs beside the op's tensors, and starts it."""

from __future__ import annotations

from typing import Any

from glagen.emit.interface import LAYOUT, arguments, differentiable, heads_of, lead
from glagen.emit.memory import EXTENT, READS, Tensor
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram, GateInfo
from glagen.ir.kernel import Kernel, Store
from glagen.ir.tuned import ALONE_KERNELS, WALKS

KernelText = dict[str, Any]  # what emit/module.py knows of a printed kernel
PACKED = "cu_seqlens"
# What a run takes last that is of some of all steps: how many steps apart sequences are, and where its results go.
INTO = "rows=None", "*into"
TO_PARTS = "Of parts of longer sequences, which are `rows` steps apart, it is told where results are to go."


def launch(
    program: ChunkProgram,
    text: KernelText,
    renamed: dict[str, str] | None = None,
    read: str = "H",
    unless: str = "",
) -> list[str]:
    """Configure and start one kernel; its outputs are local variables (`renamed`, where not of the same name).
    `unless`: where the first of its two runs has been made by others, which took as many chunks in turn."""
    if unless and not text["kernel"].runs_twice:  # then they have made all
        return [f"if not {unless}:", *indented(launch(program, text, renamed, read))]
    renamed, configured = renamed or {}, configure(program, text, known=unless)
    if not reconfigure(text):
        return [*configured, *start(program, text, renamed, read, f"[1 if {unless} else 0 :]" if unless else "")]
    first = start(program, text, renamed, read, "[:1]")
    first = [f"if not {unless}:", *indented(first)] if unless else first
    return [*configured, *first, *reconfigure(text), *start(program, text, renamed, read, "[1:]")]


def sums_made(program: ChunkProgram, kernels: dict[str, KernelText], prefix: str) -> list[str]:
    """Local sums [B, T, M] that other kernels load."""
    lines = []
    for role, text in kernels.items():
        if role.startswith(f"{prefix}_"):
            lines += [
                f"{identifier(s.target)} = _new({PACKED}, (B, T, M), torch.float32, device, rows)"
                for s in text["kernel"].stores
            ]
            lines += launch(program, text)
    return lines


def configure(
    program: ChunkProgram, text: KernelText, within: str = "", strong: bool = False, known: str = ""
) -> list[str]:
    """What a kernel's launches take beside the op's arguments and results. `within`: so many chunks are of one walk,
    and no program is to take those of two in turn; `strong`: there is no run but for strong gates; `known`: when it
    takes as many in turn as the kernel before, whose first run was this one's too.

    A program takes chunks in turn, if that was measured to be faster, where eight warps a multiprocessor are left.
    (H200, Triton 3.6.0, bf16, B1 T4096 H8 K=V=128, forward and backward, for programs of which multiprocessors had
    eight each: gla 0.156 ms for 0.179, gla_v 0.181 for 0.209, gla_kv 0.236 for 0.278, rwkv6 0.183 for 0.214.) One that
    loops over blocks of columns loads ahead in that loop alone, and may be faster with one chunk, or two. (The same, B8
    T2048 H4 K256 V512, for eight: gradients of keys 0.368 ms for 0.408 of gla and 0.36 for 0.43 of hgrn2, of values of
    gla_kv 0.41 for 0.47; B4 T4096 H64 K=V=128, what gla_kv multiplies of keys, two chunks, 0.49 for 0.55.)
    """
    kernel: Kernel = text["kernel"]
    heads, grid = _heads(kernel), _grid(kernel)
    walks = f", N * {heads}" if kernel.scans else ""
    config = f'_config("{kernel.name}", K, V, dtype{walks})'
    lines = [f"config = {_strong(text, config) if strong else config}"]
    if kernel.reduces_heads:
        lines.append(f"GROUP = {_common_group(program, kernel)}")
    if text["runs"]:
        best = f"_in_turn(config, {' * '.join([*grid, 'slots', _own(kernel)])})"
        best = f"math.gcd({best}, {within})" if within else best
        lines.append(f"RUN = RUN if {known} else {best}" if known else f"RUN = {best}")
    if kernel.runs_twice:
        lines.append(f"programs = {programs(text)}")
    if noted(text) and not kernel.runs_twice:
        lines.append(notes_of_walks("strong", text))
    return lines


def notes_of_walks(name: str, text: KernelText) -> str:
    """A tensor for what walks note, each program of which has one note."""
    kernel: Kernel = text["kernel"]
    return new(name, "N", _heads(kernel), " * ".join(_grid(kernel)), dtype="torch.int8")


def reconfigure(text: KernelText) -> list[str]:
    """The same for the run for strong gates, if that has tiles of its own, or may take more chunks in turn: a multiple,
    so that all are made again of what the first run left out."""
    lines = [f"config = {_strong(text, 'config')}"] * text["strong_tiles"]
    if text["longer"]:
        each = " * ".join([*_grid(text["kernel"]), "slots", _own(text["kernel"])])
        lines.append(f"RUN = _in_longer_turn(config, RUN, {each})")
    return [*lines, f"programs = {programs(text)}"] if lines else []


def _strong(text: KernelText, config: str) -> str:
    """The configuration for strong gates."""
    return f'_strong("{text["kernel"].name}", {config}, K, V, T, dtype)' if text["strong_tiles"] else config


def start(
    program: ChunkProgram,
    text: KernelText,
    renamed: dict[str, str],
    read: str = "H",
    passes: str = "",
    by_threads: bool = False,
    config: str = "config",
) -> list[str]:
    """One launch of a kernel that is configured. `read`: how many heads there are of what its heads read; `passes`:
    which of the two, if it runs twice; `by_threads`: TMA stores no states; `config`: what says the configuration, the
    usual one or, by a name of its own, one with which TMA stores no states if it is another."""
    kernel: Kernel = text["kernel"]
    heads = _heads(kernel)
    values = []
    for item in text["tensors"]:
        tensor: Tensor = item["tensor"]
        name = tensor.name.removesuffix("_out")
        values.append(renamed.get(name, identifier(name)))
    values += [PACKED, "first_slot", renamed.get("pieces", "pieces")] if kernel.scans else ["place", "slots"]
    strong = renamed.get("strong", "strong")
    values += [strong for _ in noted(text)] + ["early"] * text["later_first"]
    if kernel.runs_twice:
        walked = renamed.get("walks", f"{strong}.shape[0] // B"), *[f"{strong}.numel()"] * text["asks_first"]
        values += ["again"] if kernel.scans else [*walked, "programs"]
    values += [*text["scalars"], "T", "rows", heads]
    constants = [*(_group(program, name, heads, read) for name in text["groups"]), *["RUN=RUN"] * text["runs"]]
    constants += ["FEW=T <= CHUNK"] * ("FEW" in text["uses"])
    constants += [f"NOTES={f'{strong}.shape[-1]' if text['notes'] else 'notes'}"] * kernel.runs_twice
    constants += [f"JUDGED={renamed.get('judged', 'False')}"] * text["is_told"]
    kept = [x for x, item in zip(values, text["tensors"], strict=False) if item["name"] in text["described"]]
    kept = ["None"] * len(kept) if by_threads else kept
    measured = ", config.measured" * (kernel.name in WALKS)
    usual = "" if not config.isidentifier() or config == "config" else f"{config} is config and "
    by_tma = [f"{usual}_is_by_tma(config, {states}{measured})" if states != "None" else "False" for states in kept]
    constants += [f"TMA={asked}" for asked in by_tma]
    tiles = [x for x, item in zip(values, text["tensors"], strict=False) if item["name"] in text["tiled"]]
    constants += [f"HALVES={halves(kernel)}"] * kernel.may_halve
    whole = ", whole=True" * (kernel.name in ALONE_KERNELS)
    constants += [f"TMA_LOADS=_loads_by_tma(config, {', '.join(tiles)}{whole})"] * bool(tiles)
    return [
        "_launch_by_tma(" if tiles or set(kept) - {"None"} else "_launch(",
        f"    {text['function']}, {'programs' if kernel.runs_twice else programs(text)}, device,",
        f"    {', '.join(values)},",
        f"    {', '.join(constants)},",
        f"    {f'passes={_passes(text)}{passes}, ' * kernel.runs_twice}config={config},",
        ")",
    ]


def _passes(text: KernelText) -> str:
    """Those of a kernel that runs twice."""
    return "_WALKED" if text["kernel"].scans else "_later(programs)" if text["later_first"] else "_guarded(programs)"


def _heads(kernel: Kernel) -> str:
    """The number of a kernel's heads."""
    return "H" if kernel.of_states else "M"


def _own(kernel: Kernel) -> str:
    """For how many heads, or groups of them, there are programs."""
    return _heads(kernel) + (" // GROUP" if kernel.reduces_heads else "")


def _grid(kernel: Kernel) -> list[str]:
    """The blocks of columns that programs share."""
    return [f"config.blocks_{EXTENT[a]}" for a in kernel.owned if a not in kernel.whole]


def halves(kernel: Kernel) -> str:
    """In how many parts it takes a chunk, for heads like this."""
    return f'_parts("{kernel.name}", K, V, dtype)'


def programs(text: KernelText) -> str:
    """How many programs a kernel that is configured has."""
    kernel: Kernel = text["kernel"]
    runs = "N" if kernel.scans else "_blocks(slots, RUN)" if text["runs"] else "slots"
    runs = f"{halves(kernel)} * {runs}" if kernel.may_halve and not kernel.scans else runs
    return " * ".join([*_grid(kernel), runs, _own(kernel)])


def noted(text: KernelText) -> list[str]:
    """What walks note, if this kernel makes or reads that: have they met gates too strong for one anchor?"""
    return ["strong"] if text["notes"] else []


def _group(program: ChunkProgram, name: str, heads: str, read: str) -> str:
    """A keyword argument: how many of the kernel's heads share one of a tensor's."""
    if name == "GROUP":
        return "GROUP=GROUP"
    if name == READS:
        return f"{READS}=M // {read}"
    declaration = next(d for d in program.recurrence.declarations if f"GROUP_{d.name}" == name)
    return f"{name}={heads} // {heads_of(declaration)}"


def _common_group(program: ChunkProgram, kernel: Kernel) -> str:
    """The heads that a program takes in turn: whole groups of every tensor whose gradient the kernel sums."""
    names = {store.target[1:] for store in kernel.stores if "t" in store.axes}
    counts = [f"M // {heads_of(d)}" for d in differentiable(program.recurrence) if d.name in names]
    return f"math.lcm({', '.join(counts)})" if counts else "1"


def remains(gate: GateInfo) -> str:
    """What a gate leaves of a state in each walk, by name."""
    return f"{gate.name}_remains"


def lead_name(program: ChunkProgram) -> str:
    """The tensor that the type and the device are read from."""
    return identifier(lead(program.recurrence).name)


def head(program: ChunkProgram) -> list[str]:
    x = lead_name(program)
    return [
        f"    {LAYOUT}, N, slots, first_slot, place, rows = packing",
        f"    dtype, device = {x}.dtype, {x}.device",
    ]


def indented(lines: list[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def new(name: str, *extents: str, dtype: str = "torch.float32") -> str:
    return f"{name} = _empty({', '.join(extents)}, dtype={dtype}, device=device)"


def chunk_states(name: str, heads: str) -> str:
    return new(identifier(name), "slots", heads, "K", "V", dtype="_kept_type(dtype)")


def kept_reads(text: KernelText) -> list[tuple[str, list[str], str]]:
    """The name, the shape and the type of what a kernel keeps that gradients of values read of states."""

    def dtype(store: Store) -> str:
        return "_kept_type(dtype)" if "t" in store.axes else "torch.float32"

    def extents(store: Store) -> list[str]:
        return ["slots", "M", *(EXTENT.get(axis, "CHUNK") for axis in store.axes)]

    stores = (store for store in text["kernel"].stores if store.target in text["kernel"].given)
    return [(identifier(store.target), extents(store), dtype(store)) for store in stores]


def walk_back_arguments(program: ChunkProgram, text: KernelText) -> list[str]:
    """What the walk back takes beside the op's arguments: cotangents, and sums that its kernel loads."""
    (state,) = program.states
    known = {*arguments(program), state.adjoint_end, f"{state.adjoint_end}_final", f"{state.adjoint}_initial"}
    known |= {identifier(remains(gate)) for gate in program.gates}
    known |= {identifier(f"{store.target}_out") for store in text["kernel"].stores}
    names = [identifier(item["tensor"].name) for item in text["tensors"]]
    return [name for name in names if name not in known]
