"""``python -m dpmd_fast`` is the command line `dpmd-fast`."""

import sys

from dpmd_fast.cli import main

if __name__ == "__main__":
    sys.exit(main())
