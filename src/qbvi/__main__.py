"""``python -m qbvi``: the command ``qbvi``."""

import sys

from qbvi.cli import main

if __name__ == "__main__":
    sys.exit(main())
