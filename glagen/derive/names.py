"""Names for derived values, unlike each other and unlike every name of the spec."""

from __future__ import annotations


class Names:
    def __init__(self, taken: list[str]) -> None:
        self._taken = set(taken)

    def fresh(self, base: str) -> str:
        name = base
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
