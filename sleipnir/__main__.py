"""`python -m sleipnir` is the same as `sleipnir`."""

import sys

from sleipnir.cli import main

if __name__ == "__main__":
    sys.exit(main())
