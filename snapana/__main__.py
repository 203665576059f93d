"""``python -m snapana``."""

import sys

from snapana.cli import main

sys.exit(main())
