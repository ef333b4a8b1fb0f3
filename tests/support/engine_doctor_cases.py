"""The doctor of engines, the servers that it examines, and what must hold of its findings."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from completion_server import Reply

from arpo.config.doctor import Finding, broken
from arpo.config.engine_contact import Patience
from arpo.config.engine_doctor import CHAIN, examine_engine

QUICK = Patience(connect=2.0, answer=5.0)
NAMES = ["address", *(link.name for link in CHAIN)]
OPTIONAL = {"proxy", "stop strings", "temperature", "context length", "prefix cache", "weight transfer"}
OPTIONAL |= {"chat", "tool calls"}
KEY = "sk-do-not-print-me"

Body = dict[str, Any]
Change = Callable[[Body, Body], Any]  # (request, body) -> None or another body


def examine(url: str, **options: Any) -> dict[str, Finding]:
    findings = examine_engine(url, **{"patience": QUICK, **options})
    assert [finding.name for finding in findings] == NAMES
    return {finding.name: finding for finding in findings}


def changed(path: str, change: Change) -> Callable[[str, Body | None, Reply], Reply]:
    """A tamper that edits the good answers of one path."""

    def tamper(asked: str, request: Body | None, reply: Reply) -> Reply:
        if asked != path or reply.status != 200:
            return reply
        body = copy.deepcopy(reply.body)
        other = change(request or {}, body)
        return other if isinstance(other, Reply) else replace(reply, body=body if other is None else other)

    return tamper


def extras(asked: str, request: Body | None, reply: Reply) -> Reply:
    """What vLLM has besides the protocol, in development mode and with all details switched on."""
    if asked == "/version":
        return Reply(body={"version": "0.32.0"})
    if asked == "/openapi.json":
        return Reply(body={"paths": {"/collective_rpc": {}, "/update_weight_version": {}, "/health": {}}})
    if asked == "/v1/completions" and reply.status == 200:
        reply.body["usage"]["prompt_tokens_details"] = {"cached_tokens": 256}
    return reply


def holds(finding: Finding, status: str, cause: str, remedy: str) -> None:
    """Status, and one sentence that names the cause and one that names the remedy."""
    assert finding.status == status, finding
    assert cause in finding.detail, finding
    assert remedy in finding.fix, finding
    assert finding.required == (finding.name not in OPTIONAL)
    assert "\n" not in finding.detail + finding.fix


def dependants(name: str) -> set[str]:
    """Links that stand on this one, directly or through others."""
    found = {link.name for link in CHAIN if name in link.needs}
    return found.union(*(dependants(other) for other in found))


def breaks(found: dict[str, Finding], name: str, cause: str, remedy: str, status: str = "problem") -> None:
    """This link alone is broken; what stands on it is not checked, what does not is fine or a known absence."""
    holds(found[name], status, cause, remedy)
    for other in found.values():
        if other.name in dependants(name):
            assert other.status == "not checked", other
        elif other.name != name:
            assert other.status != "problem", other
    assert broken(list(found.values())) == (name not in OPTIONAL)


def answers(change: Change) -> Callable[[str, Body | None, Reply], Reply]:
    return changed("/v1/completions", change)


def choice_changed(edit: Callable[[Body, Body], Any]) -> Callable[[str, Body | None, Reply], Reply]:
    """Edit the choice of every completion, given the request."""

    def change(request: Body, body: Body) -> None:
        edit(request, body["choices"][0])

    return answers(change)


def logprobs_changed(edit: Callable[[Body], Any]) -> Callable[[str, Body | None, Reply], Reply]:
    """Edit the log-probs wherever there are any."""

    def change(request: Body, choice: Body) -> None:
        if choice["logprobs"] is not None:
            edit(choice["logprobs"])

    return choice_changed(change)
