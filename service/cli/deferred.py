"""Commands whose modules are imported when they are asked for: `helios keys` does not wait for imports of simulate."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping, MutableMapping

import click


class DeferredCommands(MutableMapping[str, click.Command]):
    """A group's commands by name, those of its own module first.

    `places`: of the others, the module in this package and the attribute there.
    """

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        self._own: dict[str, click.Command] = {}
        self._places = dict(places)

    def __getitem__(self, name: str) -> click.Command:
        return self._own[name] if name in self._own else _imported(*self._places[name])

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._own[name] = command

    def __delitem__(self, name: str) -> None:
        del (self._own if name in self._own else self._places)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._places})

    def __len__(self) -> int:
        return len({**self._own, **self._places})


@functools.cache
def _imported(module: str, attribute: str) -> click.Command:
    try:
        command: click.Command = getattr(importlib.import_module(f"service.cli.{module}"), attribute)
    except KeyError as error:  # Mapping.get would take it for a command that is not there
        raise ImportError(f"service.cli.{module} cannot be imported: {error!r}") from error
    return command
