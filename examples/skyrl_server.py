"""SkyRL's Tinker server (skyrl 0.3.0) from a plain virtual environment: no uv, and Python 3.11 too.

    pip install "skyrl[tinker,jax]==0.3.0"
    python skyrl_server.py --base-model Qwen/Qwen3-0.6B --port 8000 \\
        --backend-config '{"max_lora_rank": 32, "train_micro_batch_size": 8, "sample_max_num_sequences": 64}'

Options are those of `python -m skyrl.tinker.api`, with loopback as the default host: the server asks nobody for a key.
Two things differ from starting that module. It starts its engine by `uv run`, which needs a project of uv's; here the
engine is another process of this interpreter. And it declares a `typing.TypedDict` that pydantic takes on Python 3.12
and later only; on 3.11 the one of typing_extensions stands in.
"""

import argparse
import runpy
import sys
import typing


def main(argv: list[str]) -> None:
    """The API in this process; with "engine" for a first argument, the engine that the API starts."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
    if argv[:1] == ["engine"]:
        sys.argv = ["skyrl.tinker.engine", *argv[1:]]
        runpy.run_module("skyrl.tinker.engine", run_name="__main__")
    else:
        serve(argv)


def serve(argv: list[str]) -> None:
    """Listen until the process is told to end, or until the engine has ended."""
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    parser = argparse.ArgumentParser(prog="skyrl_server.py")
    add_model(parser, EngineConfig)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = vars(parser.parse_args(argv))
    host, port = options.pop("host"), options.pop("port")
    config = EngineConfig.model_validate(options)
    command = [sys.executable, __file__, "engine", *config_to_argv(config)]
    api._build_uv_run_cmd_engine = lambda *_: command
    api.app.state.engine_config = config
    uvicorn.run(api.app, host=host, port=port)


if __name__ == "__main__":
    main(sys.argv[1:])
