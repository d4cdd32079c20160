"""Text to a Document with source positions. Nothing of a spec is ever evaluated as Python."""

from glagen.parse.document import parse
from glagen.parse.reader import read

__all__ = ["parse", "read"]
