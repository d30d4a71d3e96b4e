"""What steps take longer because the device had nothing to do before them."""

from __future__ import annotations

from pathlib import Path

from sim.costs.interpolation import Grid
from sim.costs.profile_files import AFTER_IDLE_AXES, full_grid, read_after_idle


class AfterIdle:
    """after_idle.csv of a profile: the extra time of a step over its tokens and over how long the device idled.

    A processor's clock falls while it idles and rises again with work: within a tenth of a second on the one that this
    was written for, where a prompt of 100 tokens after 200 ms of nothing takes 100 ms rather than 80, while a decode,
    bound by memory, takes no longer. Between idling for no time, which costs nothing, and the shortest time in the
    table, the extra time is interpolated; beyond the ends of the table it is that of its ends.
    """

    def __init__(self, files: Path) -> None:
        """Read the table in folder `files`; without one, idling costs nothing.

        Raises:
            InputError: the table is broken, or has a hole.
        """
        self._grid: Grid | None = None
        found = read_after_idle(files)
        if found is not None:
            file, points = found
            points = {(tokens, 0.0): 0.0 for tokens, _ in points} | points
            axes = {name: sorted({at[i] for at in points}) for i, name in enumerate(AFTER_IDLE_AXES)}
            self._grid = Grid(axes, full_grid(file, AFTER_IDLE_AXES, axes, points), {})
            self._most = [values[-1] for values in axes.values()]

    def time_us(self, tokens: int, idle_s: float) -> float:
        """Microseconds that a step of so many tokens takes longer after so many seconds without work."""
        if self._grid is None:
            return 0.0
        most_tokens, most_ms = self._most
        return self._grid.at(min(tokens, most_tokens), min(1e3 * idle_s, most_ms))
