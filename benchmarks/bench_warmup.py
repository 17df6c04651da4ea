"""From a fresh process to the first result: with kernels in the cache, and compiled from nothing."""

import os
import subprocess
import sys
import tempfile
import time

from dpmd_fast import warmup

from .common import PROFILE, Suite, sized

RELEASE = """
import numpy as np
from dpmd_fast import Budget, release_moments
points = np.random.default_rng(0).normal(size=(100, 3))
release_moments(points, points[:5] + 0.1, bandwidth=1.0, budget=Budget(1.0, 1e-6))
"""
ATLAS = """
import numpy as np
from dpmd_fast import Budget, release_atlas
angles = np.random.default_rng(0).uniform(0.0, 6.2832, 2_000)
points = np.column_stack([np.cos(angles), np.sin(angles)])
atlas = release_atlas(points[50:], points[:50] + 0.01, dim=1, budget=Budget(1.0, 1e-6), accept_risk=True)
atlas.transform(points[:50])
"""


class FirstResult(Suite):
    """Import, load the kernels, compute; `setup` puts them into the cache first."""

    repeat = sized(1, 2, 5)
    number = 1

    def setup(self):
        warmup()

    def timeraw_release_moments(self):
        return RELEASE

    def timeraw_release_atlas(self):
        return ATLAS

    def timeraw_warmup(self):
        return "import dpmd_fast; dpmd_fast.warmup()"


if PROFILE == "full":

    class Compile(Suite):
        """Run `warmup` in a process with an empty cache."""

        unit = "seconds"
        timeout = 1200

        def track_everything(self):
            with tempfile.TemporaryDirectory() as cache:
                settings = {**os.environ, "NUMBA_CACHE_DIR": cache, "DPMD_FAST_CACHE": "1"}
                start = time.perf_counter()
                code = "import dpmd_fast; dpmd_fast.warmup()"
                subprocess.run([sys.executable, "-c", code], check=True, env=settings)
                return time.perf_counter() - start
