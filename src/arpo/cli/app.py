"""The app: its commands, and what becomes of their errors.

Exit codes: 0 done; 1 a check found something broken; 2 a mistake in the input or the command line; 3 the disk refused
a write; 4 training diverged; 5 the engine is gone; 6 a tool is; 7 a check found warnings and nothing worse; 8 another
process of the run is gone; 75 stopped by SIGTERM and resumable; 130 stopped by Ctrl-C. An error that the user can mend
is one message without a traceback; everything else is a bug and keeps its traceback.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from arpo import __version__
from arpo.cli.bench import app as bench_app
from arpo.cli.benchmarks import app as benchmarks_app
from arpo.cli.compare import compare
from arpo.cli.config import app as config_app
from arpo.cli.data import app as data_app
from arpo.cli.demo import demo
from arpo.cli.doctor import doctor
from arpo.cli.evaluate import evaluate
from arpo.cli.export import export
from arpo.cli.index import app as index_app
from arpo.cli.judge import app as judge_app
from arpo.cli.launch import app as launch_app
from arpo.cli.plan import plan
from arpo.cli.rollout import rollout
from arpo.cli.serve_search import serve_search
from arpo.cli.serve_tools import serve_tools
from arpo.cli.sft import sft
from arpo.cli.study import app as study_app
from arpo.cli.tools import app as tools_app
from arpo.cli.train import train
from arpo.errors import ArpoError

app = App(
    name="arpo",
    help="Reinforcement learning for tool-using language models: entropy-guided rollout trees.",
    help_epilogue="Start with `arpo demo`. Any setting can be given as table.key=value; `arpo config show` lists them.",
    version=__version__,
    result_action="return_value",
)
app.command(demo)
app.command(sft)
app.command(train)
app.command(evaluate, name="eval")
app.command(rollout)
app.command(compare)
app.command(plan)
app.command(export)
app.command(launch_app)
app.command(bench_app)
app.command(benchmarks_app)
app.command(data_app)
app.command(study_app)
app.command(tools_app)
app.command(index_app)
app.command(judge_app)
app.command(serve_search)
app.command(serve_tools)
app.command(config_app)
app.command(doctor)


def run(tokens: Sequence[str] | None = None) -> int:
    """Run one command; what it returns is the exit code."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # other libraries' bars are noise in a log
    try:
        return app(list(sys.argv[1:] if tokens is None else tokens), exit_on_error=False) or 0
    except CycloptsError:
        return 2  # cyclopts has printed what is wrong
    except ArpoError as error:
        print(f"arpo: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # the reader of a pipe has seen enough
