"""`arpo doctor --engine URL` as a command: options, table, JSON, exit codes, and the doctor without it."""

import json
from typing import Any

import pytest
from completion_server import CompletionServer, Reply, error

from arpo.cli import main

KEY = "sk-do-not-print-me"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_a_table_that_says_what_is_optional(capsys: pytest.CaptureFixture[str]) -> None:
    with CompletionServer() as server:
        assert main(["doctor", "--engine", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    firsts = [line.split("  ")[0].strip() for line in lines]
    assert {"token ids out", "log-probs", "chat (optional)", "tool calls (optional)"} <= set(firsts)
    assert lines[-1] == f"Fit for a rollout: engine.type=openai engine.base_url={server.url}"


def test_findings_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with CompletionServer() as server:
        assert main(["doctor", "--engine", server.url, "--json"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["entropy"]["status"] == "ok"
    assert found["entropy"]["required"]
    assert not found["chat"]["required"]
    assert found["weight transfer"]["status"] == "missing"


def test_what_a_rollout_needs_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with CompletionServer(token_ids=False, token_names=False) as server:
        assert main(["doctor", "--engine", server.url]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Not fit for a rollout: mend 'token ids out' first and run this again." in out
    assert "not checked needs: token ids out" in out


def test_model_and_key_are_passed_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    def two_models(path: str, request: dict[str, Any] | None, reply: Reply) -> Reply:
        if path == "/v1/models" and reply.status == 200:
            reply.body["data"].insert(0, {"id": "other"})
        return reply

    with CompletionServer(key=KEY, tamper=two_models) as server:
        assert main(["doctor", "--engine", server.url]) == 1
        assert main(["doctor", "--engine", server.url, "--key-variable", "MY_KEY"]) == 1
        capsys.readouterr()
        assert main(["doctor", "--engine", server.url, "--key-variable", "MY_KEY", "--model", "toy", "--json"]) == 0
    out = capsys.readouterr().out
    assert KEY not in out
    assert "MY_KEY" in out


def test_a_servers_words_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    def tamper(path: str, request: dict[str, Any] | None, reply: Reply) -> Reply:
        return error(400, "[/]broken[/] [bold]") if path == "/v1/completions" else reply

    with CompletionServer(tamper=tamper) as server:
        assert main(["doctor", "--engine", server.url]) == 1
    assert "[/]broken[/] [bold]" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--model", "--key-variable"])
def test_options_of_a_server_need_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", option, "x"]) == 2
    assert "give --engine URL as well" in capsys.readouterr().err


def test_the_server_is_all_that_is_examined(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise AssertionError("the checks of this machine are not asked for")

    monkeypatch.setattr("arpo.config.doctor.examine", fail)
    with CompletionServer() as server:
        assert main(["doctor", "--engine", server.url]) == 0
