"""Checkpoints under kills, corruption and a full disk."""

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from arpo.errors import CheckpointError, StorageError
from arpo.learn.checkpoint import fingerprint, load_latest, save_checkpoint, verify

Maker = Callable[..., Any]


def content(step: int) -> bytes:
    return f"weights of step {step}".encode() * 50


def writer(step: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(content(step))
        (folder / "deep").mkdir()
        (folder / "deep" / "state.json").write_text(f'{{"step": {step}}}')

    return write


def save(root: Path, *steps: int, keep: int = 3) -> None:
    for step in steps:
        save_checkpoint(root, step, writer(step), keep)


def loaded(root: Path, say: Callable[[str], None] = pytest.fail) -> int:
    """Step of the newest checkpoint, its content checked."""
    found = load_latest(root, say=say)
    assert found is not None
    step, folder = found
    assert (folder / "model.bin").read_bytes() == content(step)
    return step


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_save_and_load(tmp_path: Path) -> None:
    root = tmp_path / "run" / "checkpoints"
    assert load_latest(root) is None
    save(root, 9, 10)
    assert loaded(root) == 10
    assert (root / "latest").read_text() == "step_10\n"
    assert names(root) == ["latest", "step_10", "step_9"]
    assert verify(root / "step_9") is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 10, keep=2)
    assert names(tmp_path) == ["latest", "step_10", "step_3"]
    with pytest.raises(ValueError, match="at least the newest"):
        save(tmp_path, 11, keep=0)


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save_checkpoint(tmp_path, 1, lambda folder: (folder / "other").write_text("x") and None, 2)
    assert names(tmp_path) == ["latest", "step_1"]
    assert names(tmp_path / "step_1") == ["manifest.json", "other"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda folder: flip(folder / "model.bin"), "model.bin does not have the content that was saved"),
        (lambda folder: os.truncate(folder / "model.bin", 7), "model.bin has 7 bytes, not 850"),
        (lambda folder: (folder / "deep" / "state.json").unlink(), "state.json cannot be read .No such file"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json cannot be read .No such file"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is not a manifest"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is not a manifest"),
    ],
)
def test_a_corrupt_checkpoint_is_passed_over_aloud(tmp_path: Path, harm: Callable[[Path], None], why: str) -> None:
    save(tmp_path, 1, 2)
    harm(tmp_path / "step_2")
    heard: list[str] = []
    assert loaded(tmp_path, heard.append) == 1
    assert len(heard) == 1
    with pytest.warns(UserWarning, match=rf"step_2 is corrupt: {why}.*going back to step_1"):
        load_latest(tmp_path)
    harm(tmp_path / "step_1")
    with pytest.raises(CheckpointError, match=r"step_2 is corrupt.*step_1 is corrupt.*No usable checkpoint is left"):
        load_latest(tmp_path)


def test_files_added_later_do_no_harm(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step_1" / "README.md").write_text("model card")
    (tmp_path / "step_best").mkdir()
    assert loaded(tmp_path) == 1


class Killed(BaseException):
    """Stands for the process's death: nothing catches it."""


class Trap:
    """Kills before the n-th file-system operation while armed."""

    def __init__(self) -> None:
        self.left = -1
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.left >= 0 and (event == "open" or event.startswith(("os.", "shutil."))):
            self.left -= 1
            if self.left < 0:
                raise Killed

    def fires(self, after: int, action: Callable[[], None]) -> bool:
        """Run `action`, killed before its operation number `after`; whether it was."""
        self.left = after
        try:
            action()
        except Killed:
            return True
        finally:
            self.left = -1
        return False


TRAP = Trap()


@pytest.mark.parametrize("step", [3, 2], ids=["new step", "replaced step"])
def test_killed_before_any_file_operation(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)  # only a power cut would tell, and it takes time
    for n in range(200):
        root = tmp_path / str(n)
        save(root, 1, 2, keep=2)
        killed = TRAP.fires(n, lambda root=root: save(root, step, keep=2))  # type: ignore[misc]
        assert loaded(root) in {2, step}  # nothing was corrupt, nothing was lost
        save(root, 4, keep=2)
        assert loaded(root) == 4
        assert len(names(root)) == 3, names(root)
        if not killed:
            break
    assert not killed
    assert n > 15


CHILD = """
    import sys
    from pathlib import Path
    from arpo.learn.checkpoint import save_checkpoint

    root, step = Path(sys.argv[1]), int(sys.argv[2])
    while True:
        step += 1
        data = f"weights of step {step}".encode() * 50
        def write(folder):
            (folder / "model.bin").write_bytes(data)
            for part in range(4):
                (folder / f"part{part}").write_bytes(bytes(50_000))
        save_checkpoint(root, step, write, 2)
        print(step, flush=True)
"""


def test_real_kills(tmp_path: Path) -> None:
    draw, last = random.Random(0), 0
    for _ in range(6):
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            first = child.stdout.readline()
            time.sleep(draw.uniform(0, 0.03))
            child.send_signal(signal.SIGKILL)
            said = (first + child.stdout.read()).split()
        step = loaded(tmp_path)
        assert step in {int(said[-1]), int(said[-1]) + 1}  # saved, and perhaps not yet said
        assert step > last
        last = step


def refuse(number: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    return write


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "mend the folder or its permissions")]
)
def test_a_refused_write_names_the_place_and_what_is_intact(tmp_path: Path, number: int, remedy: str) -> None:
    root = tmp_path / "checkpoints"
    with pytest.raises(StorageError, match="There is no earlier checkpoint"):
        save_checkpoint(root, 1, refuse(number), 2)
    save(root, 1, 2)
    message = rf"cannot save {root}/step_3: {os.strerror(number)}. Earlier .* intact \(step_2, step_1\); {remedy}"
    with pytest.raises(StorageError, match=message):
        save_checkpoint(root, 3, refuse(number), 2)
    assert names(root) == ["latest", "step_1", "step_2"]
    assert loaded(root) == 2


def test_an_error_of_the_writer_is_its_own(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(ZeroDivisionError):
        save_checkpoint(tmp_path, 2, lambda _folder: 1 // 0 and None, 2)
    assert names(tmp_path) == ["latest", "step_1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def with_torch_file(folder: Path, state: dict[str, Any]) -> None:
    torch.save(state, folder / "learner.pt")


def with_torch_handle(folder: Path, state: dict[str, Any]) -> None:
    with (folder / "learner.pt").open("wb") as file:
        torch.save(state, file)


def with_safetensors(folder: Path, state: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors")


@pytest.mark.parametrize("write", [with_torch_file, with_torch_handle, with_safetensors])
def test_a_disk_that_is_really_full(small_disk: Path, write: Callable[[Path, dict[str, Any]], None]) -> None:
    """Three writers, three exceptions of their own, none of them an OSError."""
    save(small_disk, 1)
    state = {str(i): torch.zeros(50_000) for i in range(6)}
    with pytest.raises(StorageError, match=r"step_2: No space left on device. Earlier .* \(step_1\)"):
        save_checkpoint(small_disk, 2, lambda folder: write(folder, state), 2)
    assert loaded(small_disk) == 1
    gc.collect()  # the failed writer still holds its deleted file, and with it the space
    save(small_disk, 2)
    assert loaded(small_disk) == 2


def word_tokenizer(words: list[str], **special: str) -> PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token=words[0])), **special)


def test_a_policy_comes_back_from_its_checkpoint(tmp_path: Path, tiny: Maker) -> None:
    model, tokenizer = tiny(), word_tokenizer(["<unk>", "a", "b", "<eos>"], eos_token="<eos>")

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    save_checkpoint(tmp_path, 1, write, 1)
    found = load_latest(tmp_path, tokenizer=tokenizer)
    assert found is not None
    again = Qwen3ForCausalLM.from_pretrained(found[1])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    "other",
    [
        word_tokenizer(["<unk>", "b", "a", "<eos>"], eos_token="<eos>"),
        word_tokenizer(["<unk>", "a", "b", "<eos>"], eos_token="b"),
        word_tokenizer(["<unk>", "a", "b", "<eos>", "c"], eos_token="<eos>"),
    ],
    ids=["other ids", "other special token", "other size"],
)
def test_a_checkpoint_of_another_tokenizer_is_refused(tmp_path: Path, other: Any) -> None:
    own = word_tokenizer(["<unk>", "a", "b", "<eos>"], eos_token="<eos>")
    assert fingerprint(own) == fingerprint(word_tokenizer(["<unk>", "a", "b", "<eos>"], eos_token="<eos>"))
    save_checkpoint(tmp_path, 1, lambda folder: own.save_pretrained(folder) and None, 1)
    with pytest.raises(CheckpointError, match=f"4 tokens there, {len(other)} here"):
        load_latest(tmp_path, tokenizer=other)
