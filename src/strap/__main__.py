"""`python -m strap` is `strap`."""

import sys

from strap.cli import main

if __name__ == "__main__":
    sys.exit(main())
