"""A policy with random weights, as a folder."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket's architecture, one layer of width 32."""
    import torch

    from arpo.data.pocket import build_pocket, train_tokenizer

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_tokenizer(sentences=20)
    build_pocket(tokenizer, hidden_size=32, intermediate_size=64, num_hidden_layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
