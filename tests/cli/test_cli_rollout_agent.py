"""`arpo rollout --agent`: a wrong name is said at once."""

import pytest

from arpo.cli import main


def test_an_unknown_agent_is_refused_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "--question", "Why?", "--model", "no-such-model", "--agent", "drect"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "there is no agent 'drect'; did you mean 'direct'?" in said
    assert "Traceback" not in said
