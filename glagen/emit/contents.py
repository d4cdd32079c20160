"""A module's table of contents: its headings, and the kernels and functions for users under them."""

from __future__ import annotations

import re

_HEADING = re.compile(r"^# -- (.*?) -+$")
_DEFINED = re.compile(r"^def ([a-z]\w*)\($|^def ([a-z]\w*)\(.*\):$")
_SAID = re.compile(r'^    """(.*?)(?:""")?$')


def contents(body: str) -> list[str]:
    """The lines of it, top to bottom; of a kernel with what its docstring says first."""
    found, name = list[str](), ""
    for line in body.splitlines():
        if heading := _HEADING.match(line):
            found.append(heading.group(1))
        elif defined := _DEFINED.match(line):
            name = defined.group(1) or defined.group(2)
        elif name and (said := _SAID.match(line)):
            found.append(f"    {name}: {said.group(1)}" if name.endswith("_kernel") else f"    {name}")
            name = ""
    return found
