"""How much memory a device has left, and how much a piece of work needs at its peak."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CGROUP = Path("/sys/fs/cgroup")


class MemoryProbe:
    """Measures the memory of a GPU, or of this process and its machine on a CPU (Linux)."""

    def __init__(self, device: torch.device) -> None:
        """Measure `device`."""
        self._device = device

    def free_bytes(self) -> int:
        """Memory that nobody uses: of the GPU; or of the machine, within the limit of the container if there is one."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            return int(torch.cuda.mem_get_info(self._device)[0])
        free = _kilobytes(Path("/proc/meminfo"), "MemAvailable")
        with suppress(OSError, ValueError):  # no container, or one without a limit
            limit = int((_CGROUP / "memory.max").read_text())
            free = min(free, limit - int((_CGROUP / "memory.current").read_text()))
        return max(free, 0)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """How far `work` raises the memory in use above where it stands now.

        Where the kernel does not let the peak be reset, that of the process's whole life stands in: never too small.
        """
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            work()
            return int(torch.cuda.max_memory_allocated(self._device)) - before
        with suppress(OSError):
            _CLEAR_REFS.write_text("5")
        before = _kilobytes(_STATUS, "VmRSS")
        work()
        return max(_kilobytes(_STATUS, "VmHWM") - before, 0)


def _kilobytes(path: Path, name: str) -> int:
    """Bytes that the line `name` of a file of /proc gives in kB."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no line {name}")
