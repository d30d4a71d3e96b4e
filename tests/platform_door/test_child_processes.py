"""Worker processes started from the repository's root find a `platform` that works, and send its values back."""

from __future__ import annotations

import pytest

from tests.platform_door.process import ROOT, output_of

PACKAGE = f"{[str(ROOT / 'platform')]}\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_multiprocessing_child_finds_the_package_and_returns_uname(method: str) -> None:
    # The functions sent to the child are the library's own, so that no file of the test has to be importable there.
    ask = f"""
import multiprocessing, platform
with multiprocessing.get_context("{method}").Pool(1) as pool:
    print(pool.apply(platform.uname) == platform.uname())
    print(list(pool.apply(eval, ("__import__('platform').__path__",))))
"""
    assert output_of("-c", ask) == "True\n" + PACKAGE


def test_a_loky_worker_finds_the_package_and_returns_uname() -> None:
    ask = """
import platform
from joblib import Parallel, delayed
workers = Parallel(n_jobs=2, backend="loky")
print(workers(delayed(platform.uname)() for _ in range(4)) == [platform.uname()] * 4)
print(workers([delayed(eval)("list(__import__('platform').__path__)")])[0])
"""
    assert output_of("-c", ask) == "True\n" + PACKAGE


def test_a_ray_worker_returns_uname() -> None:
    pytest.importorskip("ray", reason="ray is not installed; it belongs to the extra `ray`")
    ask = """
import platform, ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print(ray.get(ray.remote(platform.uname).remote()) == platform.uname())
"""
    assert output_of("-c", ask).splitlines()[-1] == "True"
