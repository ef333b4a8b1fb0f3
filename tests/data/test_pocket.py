"""The pocket tokenizer: tags are single tokens, digits are single, texts come back, the style survives saving."""

import pytest
import torch
from transformers import AutoTokenizer

from arpo.data.factbook.facts import load_facts
from arpo.data.factbook.traces import make_traces
from arpo.data.pocket import SPECIAL, STYLE, build_pocket, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer()


def test_size_and_tags(tokenizer):
    assert len(tokenizer) == 512
    for tag in SPECIAL:
        ids = tokenizer.encode(tag, add_special_tokens=False)
        assert len(ids) == 1
        assert tokenizer.decode(ids) == tag
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_digits_are_single_and_names_in_pieces(tokenizer):
    assert [t for t in tokenizer.tokenize(" 4,853") if t.strip("Ġ")] == ["4", ",", "8", "5", "3"]
    pieces = [len(tokenizer.tokenize(f" {name}")) for name in load_facts().countries]
    assert sum(pieces) / len(pieces) > 3


def test_round_trip_piece_by_piece(tokenizer):
    """Pieces encoded one by one give the ids of the whole, and the whole text comes back."""
    for trace in make_traces(40, 1, "varied"):
        whole = "".join(text for text, _ in trace.pieces)
        ids = [i for text, _ in trace.pieces for i in tokenizer.encode(text, add_special_tokens=False)]
        assert tokenizer.decode(ids) == whole
        assert ids == tokenizer.encode(whole, add_special_tokens=False)


def test_any_text_comes_back(tokenizer):
    text = " naïve {x}\n\t→ 3.5% £ <tag> \\frac"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_style_and_template_survive_saving(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.init_kwargs["arpo_style"] == STYLE
    messages = [{"role": "system", "content": "no"}, {"role": "user", "content": "What is it?"}]
    for one in (tokenizer, loaded):
        assert one.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == " What is it?"
    assert loaded.encode("<think> 12</think>") == tokenizer.encode("<think> 12</think>")


def test_training_is_deterministic(tokenizer):
    assert train_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_model_is_under_a_million_parameters(tokenizer):
    torch.manual_seed(0)
    model = build_pocket(tokenizer)
    assert model.num_parameters() == 918_912
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.config.eos_token_id == tokenizer.eos_token_id
