"""A request's sampling, told to the host and to the device at once."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.device import SamplingParameters
from gpu.sampling.device_table import DeviceSamplingTable
from gpu.sampling.table import SamplingTable


class BothTables:
    """Opens and closes slots in two tables: programs on a device read one, log-probabilities on the host the other."""

    def __init__(self, host: SamplingTable, device: DeviceSamplingTable) -> None:
        self._host = host
        self._device = device

    def open(
        self, slot: int, parameters: SamplingParameters, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()
    ) -> None:
        """Describe a slot anew. Raises InvalidRequest as the tables do."""
        self._host.open(slot, parameters, prompt_ids, output_ids)
        self._device.open(slot, parameters, prompt_ids, output_ids)

    def close(self, slot: int) -> None:
        """Forget a slot; the device's row is written anew when it opens."""
        self._host.close(slot)
