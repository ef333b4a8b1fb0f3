"""A policy with random weights, in the pocket's own format, small enough to load and run in a second."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in Hugging Face layout."""
    import torch

    from arpo.data.pocket import build_pocket, train_tokenizer

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_tokenizer(sentences=20)
    model = build_pocket(tokenizer, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a temporary folder, whatever the default of run.out; no ARPO_ variable of ours leaks in."""
    monkeypatch.chdir(tmp_path)
    for name in ("ARPO_RUN__NAME", "ARPO_ROLLOUT__TOTAL"):
        monkeypatch.delenv(name, raising=False)
