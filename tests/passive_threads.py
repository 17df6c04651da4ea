"""Threads of OpenMP sleep while they wait for each other; import this before anything that loads OpenMP.

By default they spin. Tests run in two processes of as many threads as there are cores, so that a thread would
wait for one that its own spinning keeps from a core: small kernels took ten times as long. Processes that
tests start inherit the setting. No bit depends on it.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
