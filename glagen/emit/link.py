"""Several texts of definitions as one: what is the same is there once, what nobody needs is left out."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from glagen.errors import InternalError

_HEADING = re.compile(r"^# -- .* -+\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Block:
    """A top-level statement with the comments above it."""

    text: str
    defines: frozenset[str]
    uses: frozenset[str]
    apart: bool  # from what stood before it, by an empty line

    @property
    def simple(self) -> bool:
        return not re.search(r"^(?:@|def |class )", self.text, re.MULTILINE)


def link(parts: Mapping[str, str], whole: str, entries: Collection[str]) -> str:
    """The text of `whole` after those of `parts`, by suffix; `whole` calls a part's `entries` as `name_of_suffix`.

    Ensures: definitions that all texts agree on, those they rest on included, stand once and first. Other names that
    texts share get their part's suffix. Definitions that `whole` does not come to are left out.
    """
    texts = {suffix: _blocks(_HEADING.sub("", text)) for suffix, text in parts.items()} | {"": _blocks(whole)}
    shared = _shared(texts, entries)
    counts = [n for blocks in texts.values() for n in {n for b in blocks for n in b.defines}]
    pieces: dict[str, list[_Block]] = {}
    for suffix, blocks in texts.items():
        own = {n for block in blocks for n in block.defines if n not in shared}
        renamed = {n: f"{n}_of_{suffix}" for n in own if suffix and (counts.count(n) > 1 or n in entries)}
        pieces[suffix] = [_renamed(b, renamed) for b in blocks if not b.defines or b.defines & own]
    first = {n: block for blocks in reversed(texts.values()) for block in blocks for n in block.defines & shared}
    common = list(dict.fromkeys(block for blocks in texts.values() for block in blocks if block in first.values()))
    everything = [block for blocks in (common, *pieces.values()) for block in blocks]
    needed = _needed(everything, pieces[""])
    missing = {n for block in pieces[""] for n in block.uses} & {
        n for bs in texts.values() for b in bs for n in b.defines
    }
    missing -= {n for block in needed for n in block.defines}
    if missing:
        raise InternalError(f"nothing defines {', '.join(sorted(missing))}")
    sections = [_text([b for b in common if b in needed])]
    for suffix in parts:
        sections.append(
            f"# -- state {suffix} ".ljust(120, "-") + "\n" + _text([b for b in pieces[suffix] if b in needed])
        )
    return "\n\n\n".join([*sections, _text(pieces[""])]) + "\n"


def _text(blocks: list[_Block]) -> str:
    """Blocks one after another: two blank lines around definitions, plain statements as they stood."""
    text = ""
    for before, block in zip([None, *blocks], blocks, strict=False):
        between = "\n" * (1 + block.apart) if before is not None and before.simple and block.simple else "\n\n\n"
        gap = "" if before is None else between
        text += gap + block.text
    return text


def _blocks(text: str) -> list[_Block]:
    """The statements of a text, with comments before them."""
    stretches: list[str] = []
    for stretch in re.split(r"\n\n(?=\n\S)", text):
        if stretches and re.fullmatch(r"(#.*|\n)*", stretches[-1]):  # a comment alone, before what is next
            stretches[-1] += f"\n\n{stretch}"
        else:
            stretches.append(stretch)
    return [block for stretch in stretches for block in _stretch(stretch)]


@functools.lru_cache(maxsize=4096)  # parts have most of these in common
def _stretch(text: str) -> tuple[_Block, ...]:
    """The statements of what two blank lines are around."""
    lines, nodes = text.splitlines(), ast.parse(text).body
    ends = itertools.pairwise([0, *(node.end_lineno or 0 for node in nodes)])
    return tuple(_block("\n".join(lines[start:end]), node) for (start, end), node in zip(ends, nodes, strict=True))


def _block(text: str, node: ast.stmt) -> _Block:
    return _Block(text.strip("\n"), frozenset(_defined(node)), _used(node), apart=text.startswith("\n"))


def _used(node: ast.stmt) -> frozenset[str]:
    """The names that a statement takes from outside of it: all but arguments, and variables of a definition's own."""
    inner = list(ast.walk(node))
    own = {n.arg for n in inner if isinstance(n, ast.arg)}
    names = frozenset(n.id for n in inner if isinstance(n, ast.Name)) - own
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return names
    own = {n.name for n in inner if isinstance(n, ast.FunctionDef) and n is not node}
    return names - own - {n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.split(".")[0] for alias in names)
        case ast.Assign(targets=targets):
            yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        case ast.Try(body=body):
            for inner in body:
                yield from _defined(inner)
        case ast.Expr():
            return
        case _:
            raise InternalError(f"cannot link a {type(node).__name__}")


def _shared(texts: Mapping[str, list[_Block]], entries: Collection[str]) -> set[str]:
    """The names whose definitions all texts that have one agree on, and likewise all that these use.

    What one of several parts alone defines is not shared: it stands better beside what it is for.
    """
    defined: dict[str, set[str]] = {}
    for blocks in texts.values():
        for block in blocks:
            for name in block.defines:
                defined.setdefault(name, set()).add(block.text)
    uses = {n: b.uses for blocks in texts.values() for b in blocks for n in b.defines}
    owners = {n: sum(any(n in b.defines for b in blocks) for blocks in texts.values()) for n in defined}
    least = 2 if len(texts) > 2 else 1
    shared = {n for n, found in defined.items() if len(found) == 1 and owners[n] >= least} - set(entries)
    while True:
        closed = {n for n in shared if all(u in shared for u in uses[n] if u in defined)}
        if closed == shared:
            return shared
        shared = closed


def _renamed(block: _Block, names: Mapping[str, str]) -> _Block:
    text = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: names.get(m.group(), m.group()), block.text)
    return _Block(
        text,
        frozenset(names.get(n, n) for n in block.defines),
        frozenset(names.get(n, n) for n in block.uses),
        block.apart,
    )


def _needed(blocks: list[_Block], roots: list[_Block]) -> set[_Block]:
    """Blocks that the roots come to, and the import from __future__.

    A bare statement counts with the name it begins with: `_op.register_fake(...)`.
    """
    needed = {*roots, *(block for block in blocks if "__future__" in block.text)}
    while True:
        wanted = {name for block in needed for name in block.uses}
        have = {name for block in needed for name in block.defines}
        more = {
            b for b in blocks if b not in needed and (b.defines & wanted or (not b.defines and _subject(b) in have))
        }
        if not more:
            return needed
        needed |= more


def _subject(block: _Block) -> str:
    return re.split(r"\W", block.text.splitlines()[-1].lstrip(), maxsplit=1)[0]
