"""``python -m snapana.recording train.py ARGS``: what ``snapana record`` does, with nothing but torch installed."""

from __future__ import annotations

import sys

from snapana.recording.runner import run_script

if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:]))
