"""`python -m arpo`: the same as the command `arpo`."""

import sys

from arpo.cli import main

sys.exit(main())
