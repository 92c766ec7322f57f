"""What tells the catalogs of two runs apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from scheduler.shapes import GraphShape


def catalog_digest(shapes: Iterable[GraphShape]) -> str:
    """sha256 of the shapes' labels in catalog order: equal for engines that choose among the same graphs."""
    return hashlib.sha256("\n".join(shape.label for shape in shapes).encode()).hexdigest()
