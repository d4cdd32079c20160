"""What kernels make for others: scores, for heads where that was measured to be faster, what else walks are given, and
what kernels of a backward share."""

from __future__ import annotations

from glagen.emit.interface import arguments
from glagen.emit.launch import (
    KernelText,
    configure,
    halves,
    head,
    indented,
    kept_reads,
    launch,
    new,
    noted,
    reconfigure,
    start,
)
from glagen.emit.memory import EXTENT
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Store
from glagen.ir.tuned import GIVEN, KEPT_BACK, KEY_OPERANDS, ON_CHIP, OPERANDS, SHARED, STRONG


def scores(program: ChunkProgram, kernels: dict[str, KernelText], steps: str) -> list[str]:
    """The module's functions that make them on Triton, if it has any. `steps`: those of a chunk."""
    if "scores" not in kernels:
        return []
    text = kernels["scores"]
    rows, told = _rows(steps)
    tensors = _tensors([x for x in text["kernel"].stores if x.target not in text["kernel"].given], rows)
    names = [name for name, _, _ in tensors]
    none = ", ".join("None" for _ in names)
    given = ", ".join([*arguments(program), "packing", *noted(text)])
    made = [*told, *(new(name, *extents, dtype=dtype) for name, extents, dtype in tensors)]
    not_given = dict.fromkeys(text["kernel"].given, "None")
    of_heads = "strong.shape[1]"  # walks that note strong gates are along heads of the state, or of the outputs

    def function(name: str, doc: str, row: str, launched: list[str]) -> str:
        """One of them; `row`: the table's kernel without which it makes none, if there is to be one."""
        of_halves = f" or {halves(text['kernel'])} > 1" * text["may_halve"]  # which are for walks alone
        row = f'("{row}", _capability(), dtype, *_powers(K, V)) not in TUNED{of_halves}' if row else ""
        unless = [f"if {row}:", f"    return {none}"] * bool(row)
        opening = [f"def _{name}_triton({given}):", f'    """{doc}"""', *head(program)]
        return "\n".join([*opening, *indented([*unless, *made, *launched, f"return {', '.join(names)}"])])

    better, found = "None where kernels that use them had better make them.", []
    if any(x["kernel"].ready and not x["kernel"].late for x in kernels.values()):
        launched = launch(program, text, not_given, read=of_heads)
        found.append(function("scores", f"Scores of each chunk; {better}", "scores", launched))
    if wait_for_walks(kernels):
        doc = "Scores of walks that met strong gates, at least"
        doc, row = (f"{doc}.", "") if kernels["fused"]["kernel"].late else (f"{doc}; {better}", f"scores{STRONG}")
        launched = start(program, text, not_given, of_heads, passes="[1:]")
        found.append(function("strong_scores", doc, row, [*configure(program, text, strong=True), *launched]))
    return found


def wait_for_walks(kernels: dict[str, KernelText]) -> bool:
    """Do scores wait for walks, which note where gates are strong?"""
    return "scores" in kernels and kernels["scores"]["kernel"].runs_twice


def scores_made(program: ChunkProgram, kernels: dict[str, KernelText], of_strong: bool = False) -> list[str]:
    """Scores for kernels that load them, if there is a kernel that makes any; or for runs `of_strong` gates alone."""
    if "scores" not in kernels:
        return []
    given = [*arguments(program), "packing", *noted(kernels["scores"])]
    return [f"{', '.join(made_scores(kernels))} = _{'strong_' * of_strong}scores_triton({', '.join(given)})"]


def made_scores(kernels: dict[str, KernelText]) -> list[str]:
    """What to call them."""
    kernel = kernels["scores"]["kernel"]
    return [identifier(store.target) for store in kernel.stores if store.target not in kernel.given]


def notes_go_back(kernels: dict[str, KernelText]) -> bool:
    """Does a walk back take what a forward on chip noted of strong gates, and the scores that this was given?"""
    return all(role in kernels and kernels[role]["kernel"].late for role in ON_CHIP)


def operands(program: ChunkProgram, kernels: dict[str, KernelText], steps: str) -> list[str]:
    """The module's function that makes scores together with what else a walk is given, if it has one."""
    shared = [_shared(program, kernels[role], steps) for role in (OPERANDS, *SHARED) if role in kernels]
    if not walk_operands(kernels):
        return shared
    text = kernels[_maker(kernels)]
    told, tensors = ([], kept_reads(text)) if KEPT_BACK in kernels else _with_notes(text, steps)
    doc = "Tensors for what walks on chip are given, and their backward; empty where they are given none."
    doc = "Tensors for what a forward keeps of what it reads of states; empty if none." if KEPT_BACK in kernels else doc
    new_ones = [
        "def _new_operands(dtype, device, slots=0, M=0, K=0, V=0):",
        f'    """{doc}"""',
        *indented(told),
        "    return [",
        *(f"        _empty({', '.join(extents)}, dtype={kind}, device=device)," for _, extents, kind in tensors),
        "    ]",
    ]
    if GIVEN not in kernels or shared:
        return ["\n".join(new_ones), *shared]
    no_more = dict.fromkeys(text["kernel"].given, "None")  # all else is right at once
    passes = [({}, "[:1]"), (no_more, "[1:]")] if text["kernel"].runs_twice else [({}, "")]
    names = operand_names(kernels) | {"walks": "None"}
    launches = [start(program, text, names | less, read="strong.shape[1]", passes=which) for less, which in passes]
    lines = [
        f"def {operands_call(program)}:",
        '    """What walks on chip are given: scores of each chunk, and what else has no value columns."""',
        *head(program),
        f"    [{', '.join(walk_operands(kernels))}] = operands = _new_operands(dtype, device, slots, M, K, V)",
        *indented(configure(program, text)),
        *indented([*launches[0], *(line for one in launches[1:] for line in [*reconfigure(text), *one])]),
        "    return operands",
    ]
    return ["\n".join(new_ones), "\n".join(lines)]


def _shared(program: ChunkProgram, text: KernelText, steps: str) -> str:
    """The function that makes what kernels of the backward are given, on one side."""
    told, tensors = _with_notes(text, steps)
    lines = [
        f"def {_shared_head(program, text)}:",
        f'    """{text["doc"]}"""',
        *head(program),
        *indented(told),
        *indented([new(name, *extents, dtype=dtype) for name, extents, dtype in tensors]),
        *indented(launch(program, text, {"walks": "None"}, read="strong.shape[1]")),
        f"    return {', '.join(name for name, _, _ in tensors)}",
    ]
    return "\n".join(lines)


def _shared_head(program: ChunkProgram, text: KernelText) -> str:
    """How that function is called."""
    known = {*arguments(program), *(identifier(store.target) for store in text["kernel"].stores)}
    names = (identifier(item["tensor"].name.removesuffix("_out")) for item in text["tensors"])
    more = [name for name in names if name not in known]
    return f"_{text['role']}_triton({', '.join([*arguments(program), 'packing', *more])})"


def shared_call(program: ChunkProgram, text: KernelText) -> str:
    """The call of it, with names for what it gives."""
    names = [identifier(store.target) for store in text["kernel"].stores]
    names += [shared_notes(text["role"]) for _ in noted(text)]
    return f"{', '.join(names)} = {_shared_head(program, text)}"


def shared_notes(role: str) -> str:
    """What to call the notes of strong gates that are made, and read, by kernels for this side."""
    return f"strong_{role.partition('_')[0]}s"


def operands_call(program: ChunkProgram) -> str:
    """The call of it."""
    return f"_operands_triton({', '.join([*arguments(program), 'packing'])})"


def walk_operands(kernels: dict[str, KernelText]) -> list[str]:
    """What walks are given, by name; the backward takes what the forward's was given. None if no walk is."""
    if KEPT_BACK in kernels:
        return [name for name, _, _ in kept_reads(kernels[_maker(kernels)])]
    if GIVEN not in kernels and not notes_go_back(kernels):
        return []
    maker = kernels[_maker(kernels)]
    notes = shared_notes(KEY_OPERANDS) if maker["role"] == OPERANDS else "strong"
    return [*operand_names(kernels).values(), *(notes for _ in noted(maker))]


def _maker(kernels: dict[str, KernelText]) -> str:
    """The kernel that makes what walks are given, or keeps what it reads of states."""
    return "fused" if KEPT_BACK in kernels else OPERANDS if OPERANDS in kernels else "scores"


def operand_names(kernels: dict[str, KernelText]) -> dict[str, str]:
    """What to call the tiles that walks are given: another name than that of sums over columns, which lie otherwise."""
    sums = {store.target for role, text in kernels.items() if "sums_" in role for store in text["kernel"].stores}
    targets = [store.target for store in kernels[_maker(kernels)]["kernel"].stores]
    return {target: f"{target}_given" if target in sums else identifier(target) for target in targets}


def _rows(steps: str) -> tuple[str, list[str]]:
    """What to call a chunk's steps, and the line that says how many they are if that depends on the heads."""
    return ("CHUNK", []) if steps == "CHUNK" else ("chunk", [f"chunk = {steps}"])


def _with_notes(text: KernelText, steps: str) -> tuple[list[str], list[tuple[str, list[str], str]]]:
    """The lines that say how many steps a chunk has, or its half; what is stored of each, and notes of its gates."""
    rows, told = _rows(steps)
    if text["may_halve"]:
        told = [f"parts = {halves(text['kernel'])}", f"chunk = {steps} // parts"]
    notes = [(name, ["slots", "M", "1"], "torch.int8") for name in noted(text)]
    return told, _tensors(text["kernel"].stores, rows, "parts * slots" if text["may_halve"] else "slots") + notes


def _tensors(
    stores: tuple[Store, ...] | list[Store], rows: str, slots: str = "slots"
) -> list[tuple[str, list[str], str]]:
    """The name, the shape and the type of what is stored of each chunk; `rows`: its steps."""
    found = []
    for store in stores:
        dtype = "_kept_type(dtype)" if "s" in store.axes else "dtype" if len(store.axes) == 2 else "torch.float32"
        extents = [slots, "M", *(EXTENT.get(axis, rows) for axis in store.axes)]
        found.append((identifier(store.target), extents, dtype))
    return found
