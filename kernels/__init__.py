"""GPU kernels, their CPU counterparts, and the profiler that prices them (they come with the real world)."""
