"""`arpo serve-search`: a retriever over an index on this machine."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from arpo.errors import ConfigError


def serve_search(
    index: Annotated[Path, Parameter(help="An index folder, a JSONL or Parquet file, or factbook.")],
    /,
    *,
    host: Annotated[str, Parameter(help="Address to listen on; anything but the loopback one is open to others.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Parameter(help="Port to listen on; 0: any that is free.")] = 8000,
    top_k: Annotated[int, Parameter(help="Results of a request that does not say.")] = 3,
) -> int:
    """Answer Search-R1's retrieval protocol: POST /retrieve, and GET /health. Ends with Ctrl-C or SIGTERM."""
    from arpo.cli.index import open_named
    from arpo.tools.search.server import MAX_TOP_K, is_loopback, serve

    if not 1 <= top_k <= MAX_TOP_K:
        raise ConfigError(f"--top-k goes from 1 to {MAX_TOP_K}; got {top_k}")
    opened = open_named(index)
    if not is_loopback(host):
        print(f"arpo: {host} is no loopback address: whoever reaches it may search", file=sys.stderr)

    def ready(url: str) -> None:
        print(f"arpo: {len(opened):,} passages ({opened.kind}) at {url}", file=sys.stderr, flush=True)

    serve(opened, host, port, top_k, ready)
    return 0
