"""`python -m arpo.train`: the command `arpo train`, for launchers that start a module in several processes."""

import sys

from arpo.cli import main

sys.exit(main(["train", *sys.argv[1:]]))
