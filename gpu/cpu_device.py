"""A model on the CPU: prepared programs run eagerly by one thread, one after the other, while the caller plans on."""

from __future__ import annotations

from collections.abc import Mapping

from gpu.device import DeviceLimits
from gpu.prepared_device import PreparedDevice
from gpu.sampling import SamplingTable
from gpu.state import SlotState
from gpu.transport import CpuTransport, Run
from scheduler.shapes import GraphShape


class CpuDevice(PreparedDevice[Run]):
    """Implements gpu.device.Device; programs and uploads run on a thread of their own."""

    def __init__(
        self,
        programs: Mapping[GraphShape, Run],
        limits: DeviceLimits,
        state: SlotState,
        sampling: SamplingTable,
        threads: int,
    ) -> None:
        """`state` and `sampling` are those that the programs work on; `threads` is torch's thread count for them."""
        super().__init__(programs, limits, state, sampling, CpuTransport(threads))
