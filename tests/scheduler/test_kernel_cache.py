"""The kernels' cache: what names its directory, starts at the same moment, and kernels that run uncompiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernel_scenario
import numpy as np
import pytest

from scheduler.kernels import loader

ROOT = Path(loader.__file__).parents[2]

TINY_ENTRIES = """
from scheduler.kernels.accounting import updated_memory
from scheduler.kernels.jit import entry, float64


@entry(float64(float64, float64, float64, float64, float64))
def update(memory, interval_ms, served, rate, adaptation_ms):
    return updated_memory(memory, interval_ms, served, rate, adaptation_ms)
"""

USE_TINY = """
from scheduler.kernels.loader import load_kernels
update = load_kernels().update
print(update(2.0, 8.0, 3.0, 0.25, 100.0).hex(), sum(update.stats.cache_hits.values()))
"""


@pytest.fixture
def tiny(tmp_path):
    """A copy of the scheduler package whose only entry is one small function with an inner one."""
    ignored = shutil.ignore_patterns("__pycache__", "simulation", "reference")
    shutil.copytree(ROOT / "scheduler", tmp_path / "scheduler", ignore=ignored)
    (tmp_path / "scheduler" / "kernels" / "entries.py").write_text(TINY_ENTRIES)
    return tmp_path


def start(directory, code, **environment):
    """A Python process in `directory`, which holds the scheduler package, with its kernel cache there too."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    env = ours | {"PYTHONPATH": str(directory), "NUMBA_CACHE_DIR": str(directory / "cache")} | environment
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, env=env, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output_of(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def test_two_processes_that_start_at_once_with_an_empty_cache_both_work(tiny):
    both = [start(tiny, USE_TINY) for _ in range(2)]
    values = {output_of(process).split()[0] for process in both}
    value, hits = output_of(start(tiny, USE_TINY)).split()
    assert values == {value}
    assert hits == "1"


def test_a_changed_inner_function_is_compiled_anew(tiny):
    before, _ = output_of(start(tiny, USE_TINY)).split()
    source = tiny / "scheduler" / "kernels" / "accounting.py"
    source.write_text(source.read_text().replace("MEMORY_MIN = 1e-12", "MEMORY_MIN = 50.0"))
    after, hits = output_of(start(tiny, USE_TINY)).split()
    assert float.fromhex(before) < 50.0
    assert (float.fromhex(after), hits) == (50.0, "0")


def test_every_source_that_kernels_are_made_of_names_the_cache_directory(tiny, monkeypatch):
    kernels = tiny / "scheduler" / "kernels"
    monkeypatch.setattr(loader, "_SOURCES", kernels)
    digests = {loader.kernel_digest()}
    compiled = [path for path in kernels.glob("*.py") if path.name not in loader._NOT_COMPILED]
    sources = [*compiled, tiny / "scheduler" / "layout.py"]
    for source in sources:
        source.write_text(source.read_text() + "\n")
        digests.add(loader.kernel_digest())
    assert len(digests) == 1 + len(sources)
    (kernels / "loader.py").write_text("")  # holds no kernel: nothing is compiled anew for it
    assert loader.kernel_digest() in digests


def test_compiled_and_plain_kernels_plan_alike_bit_for_bit():
    code = "import sys; sys.path.insert(0, 'tests'); import kernel_scenario; print('\\n'.join(kernel_scenario.story()))"
    plain = output_of(start(ROOT, code, NUMBA_DISABLE_JIT="1", NUMBA_CACHE_DIR=os.devnull)).splitlines()
    assert len({line.split()[0] for line in plain}) > 4
    assert kernel_scenario.story() == plain


def test_importing_the_scheduler_does_not_import_numba():
    code = "import scheduler, sys; print('numba' in sys.modules)"
    assert output_of(start(ROOT, code)).strip() == "False"


def test_mathematical_functions_are_pythons_bit_for_bit(tiny):
    values = np.random.default_rng(3).uniform(1e-9, 60.0, 300)
    calls = f"""
import math
from scheduler.kernels.loader import load_kernels
update = load_kernels().update
for k in {values.tolist()!r}:
    expected = 3.0 * math.exp(-k) + (2.0 / k) * -math.expm1(-k)
    assert update(3.0, 2.0, k, 1.0, 1.0) == expected, k
"""
    output_of(start(tiny, calls))
