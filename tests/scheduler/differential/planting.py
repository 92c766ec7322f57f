"""Plants faults into the reference, one at a time: the comparison must notice each of them.

A fault is a small change of one reference module's source. The package is imported anew with the change, beside the
sound one, and a scenario is run with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import Callable

from tests.scheduler.differential.drive import run_scenario
from tests.scheduler.differential.scenario import Scenario, make_scenario

PACKAGE = "scheduler.reference"
FOLDER = pathlib.Path(importlib.util.find_spec(PACKAGE).origin).parent


@dataclasses.dataclass(frozen=True)
class Fault:
    """`old` occurs once in reference/`module`.py and becomes `new`. `make`: what makes the scenarios.

    `shows`: the first scenario in which it shows; only a hint, to save time.
    """

    name: str
    module: str
    old: str
    new: str
    make: Callable[[int], Scenario] = make_scenario
    shows: int = 0


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads one file with the fault in it; never the bytecode cache."""

    def __init__(self, name, path, fault):
        super().__init__(name, path)
        self.fault = fault

    def path_stats(self, path):
        raise OSError

    def set_data(self, path, data, **more):
        pass

    def get_data(self, path):
        source = super().get_data(path)
        if pathlib.Path(path).name != f"{self.fault.module}.py":
            return source
        return planted(source.decode(), self.fault).encode()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault):
        self.fault = fault

    def find_spec(self, name, path=None, target=None):
        if name != f"{PACKAGE}.{self.fault.module}":
            return None
        file = FOLDER / f"{self.fault.module}.py"
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file), self.fault))


def planted(source, fault):
    """The source with the fault; it must fit exactly once."""
    found = source.count(fault.old)
    assert found == 1, f"{fault.name}: {fault.old!r} occurs {found} times in {fault.module}"
    return source.replace(fault.old, fault.new)


@contextlib.contextmanager
def faulty_reference(fault):
    """(ReferenceScheduler, ReferenceCatalog) of a package with the fault; the sound one is back afterwards."""
    parent = sys.modules["scheduler"]
    sound = {name: module for name, module in sys.modules.items() if name.startswith(PACKAGE)}
    attribute = parent.reference
    for name in sound:
        del sys.modules[name]
    finder = _Finder(fault)
    sys.meta_path.insert(0, finder)
    try:
        scheduler = importlib.import_module(f"{PACKAGE}.scheduler")
        catalog = importlib.import_module(f"{PACKAGE}.catalog")
        yield scheduler.ReferenceScheduler, catalog.ReferenceCatalog
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
        sys.modules.update(sound)
        parent.reference = attribute


def noticed(fault, scenarios=80, plans=60):
    """The report of a scenario in which the fault shows, None when it shows in none of the first `scenarios`."""
    with faulty_reference(fault) as plain_of:
        for seed in (fault.shows, *(seed for seed in range(scenarios) if seed != fault.shows)):
            report = run_scenario(seed, plans, plain_of, fault.make)
            if report.difference is not None:
                return report
    return None
