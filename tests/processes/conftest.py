"""`arpo train` in several processes, by the real launcher. `make test-processes` runs this folder.

`make test` does not: each run starts two processes that import everything anew, which is minutes of two cores. What two
processes make of an update, whole or in shards, is in tests/learn/test_learn_distributed.py, which it does run.
"""

import os

if os.environ.get("ARPO_PROCESS_TESTS") != "1":
    collect_ignore_glob = ["test_*.py"]
