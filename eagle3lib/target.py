"""The target's embedding, final norm, head and token texts: all of the target that is ever read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.norm import rms_norm
from eagle3lib.tensors import checkpoint_files, open_safetensors, read_headers, read_json, read_tensor

#: Rows of the head that are held in float32 at a time.
VOCAB_CHUNK = 16384


class Rows(Protocol):
    """A [V, H] table of which only the rows asked for are read."""

    def __call__(self, ids: Tensor) -> Float[Tensor, "T H"]: ...


@dataclass(frozen=True)
class Scores:
    """What the target's last state says of the recorded next tokens, per row."""

    logprob: Float[Tensor, " T"]  # of the recorded token, natural logarithm
    argmax: Int[Tensor, " T"]


@dataclass(frozen=True)
class Target:
    """The parts of a target that an investigation needs; the blocks are never loaded.

    Attributes:
        architecture: Hugging Face's name, such as "LlamaForCausalLM"; engines' layer-id rules depend on it.
        tied: whether the head is the embedding.
    """

    path: Path
    architecture: str | None
    n_layers: int
    hidden_size: int
    vocab_size: int
    norm_eps: float
    rope_theta: float | None
    norm_weight: Float[Tensor, " H"]
    tied: bool
    embedding_rows: Rows
    head_row_reader: Rows
    token_texts: tuple[str, ...] | None

    def embed(self, token_ids: Int[Tensor, " T"]) -> Float[Tensor, "T H"]:
        """B(0) of these tokens, float32.

        Raises:
            InputError: if an id is outside the vocabulary.
        """
        self._check(token_ids)
        return self.embedding_rows(token_ids.cpu())

    def head_rows(self, token_ids: Int[Tensor, " D"]) -> Float[Tensor, "D H"]:
        """Rows of the head, float32.

        Raises:
            InputError: if an id is outside the vocabulary.
        """
        self._check(token_ids)
        return self.head_row_reader(token_ids.cpu())

    def final_norm(self, last: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
        """norm(B(n)), float32."""
        return rms_norm(last.float(), self.norm_weight, self.norm_eps)

    def score(self, normed: Float[Tensor, "T H"], next_ids: Int[Tensor, " T"]) -> Scores:
        """Log-probability of each row's recorded next token, and the argmax, over the whole vocabulary.

            logp = z[x] - logsumexp(z),   z = normed · headᵀ

        The head is read in chunks of `VOCAB_CHUNK` rows; no [T, V] block is made.
        """
        n = len(next_ids)
        total = torch.full((n,), -torch.inf)
        best = torch.full((n,), -torch.inf)
        argmax = torch.zeros(n, dtype=torch.long)
        recorded = torch.full((n,), -torch.inf)
        for begin in range(0, self.vocab_size, VOCAB_CHUNK):
            ids = torch.arange(begin, min(begin + VOCAB_CHUNK, self.vocab_size))
            logits = normed @ self.head_row_reader(ids).T  # [T, chunk]
            total = torch.logaddexp(total, logits.logsumexp(-1))
            value, index = logits.max(-1)
            argmax = torch.where(value > best, index + begin, argmax)
            best = torch.maximum(best, value)
            inside = (next_ids >= begin) & (next_ids < begin + len(ids))
            recorded[inside] = logits[inside, next_ids[inside] - begin]
        return Scores(recorded - total, argmax)

    def text(self, token_id: int) -> str:
        """A token's text, or its id in angle brackets where the target carries no texts."""
        if self.token_texts is None or token_id >= len(self.token_texts):
            return f"<{token_id}>"
        return self.token_texts[token_id]

    def _check(self, token_ids: Tensor) -> None:
        if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < self.vocab_size:
            raise InputError(
                f"Expected token ids below the vocabulary of {self.vocab_size} in {self.path}, found"
                f" {int(token_ids.min())} .. {int(token_ids.max())}; are the tokens another model's?"
            )


def load_target(path: Path | str) -> Target:
    """Open a target: a GGUF file, or a Hugging Face folder of which only the needed shards must be present.

    Raises:
        InputError: if the path is neither, or a needed tensor or number is absent.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(
                f"Expected the target's GGUF file at {path}, found none; for the bundled case run ./run_all.sh once."
            )
        return _load_gguf(path)
    if path.is_dir():
        return _load_folder(path)
    raise InputError(
        f"Expected a GGUF file or a Hugging Face folder at {path}, found {'a file' if path.exists() else 'nothing'}."
    )


def _load_gguf(path: Path) -> Target:
    import gguf  # here, since only GGUF targets pay for its import

    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a whole GGUF file ({error}); copy it again.") from error
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def value(key: str):
        field = reader.fields.get(key)
        if field is None:
            raise InputError(f"Expected the field {key} in {path}, found none.")
        return field.contents()

    def rows(name: str) -> Rows:
        if name not in tensors:
            raise InputError(f"Expected the tensor {name} in {path}, found none.")
        tensor = tensors[name]
        return lambda ids: torch.from_numpy(gguf.quants.dequantize(tensor.data[ids.numpy()], tensor.tensor_type).copy())

    family = value("general.architecture")
    embedding = rows("token_embd.weight")
    tied = "output.weight" not in tensors
    hidden = int(value(f"{family}.embedding_length"))
    norm = rows("output_norm.weight")(torch.arange(hidden)) if "output_norm.weight" in tensors else None
    if norm is None:
        raise InputError(f"Expected the tensor output_norm.weight in {path}, found none.")
    return Target(
        path=path,
        architecture={
            "llama": "LlamaForCausalLM",
            "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM",
        }.get(family),
        n_layers=int(value(f"{family}.block_count")),
        hidden_size=hidden,
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        norm_eps=float(value(f"{family}.attention.layer_norm_rms_epsilon")),
        rope_theta=float(value(f"{family}.rope.freq_base")) if f"{family}.rope.freq_base" in reader.fields else None,
        norm_weight=norm,
        tied=tied,
        embedding_rows=embedding,
        head_row_reader=embedding if tied else rows("output.weight"),
        token_texts=tuple(map(_byte_level_text, value("tokenizer.ggml.tokens"))),
    )


def _load_folder(path: Path) -> Target:
    config = read_json(path / "config.json")
    infos = read_headers([file for file in checkpoint_files(path) if file.exists()])

    def number(name: str):
        if name not in config:
            raise InputError(f"Expected {name} in {path / 'config.json'}, found none.")
        return config[name]

    def find(*names: str) -> str:
        for name in names:
            if name in infos:
                return name
        raise InputError(f"Expected the tensor {names[0]} in {path}, found none in the shards that are present.")

    def rows(name: str) -> Rows:
        def read(ids: Tensor) -> Tensor:
            # One slice from the lowest to the highest row asked for: the mapped file serves it by pages.
            low, high = int(ids.min()), int(ids.max()) + 1
            with open_safetensors(infos[name].file) as handle:
                return handle.get_slice(name)[low:high][ids - low].float()

        return read

    embedding = find("model.embed_tokens.weight", "embed_tokens.weight")
    tied = bool(config.get("tie_word_embeddings"))
    return Target(
        path=path,
        architecture=next(iter(config.get("architectures") or []), None),
        n_layers=int(number("num_hidden_layers")),
        hidden_size=int(number("hidden_size")),
        vocab_size=infos[embedding].shape[0],
        norm_eps=float(number("rms_norm_eps")),
        rope_theta=config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta"),
        norm_weight=read_tensor(infos[find("model.norm.weight", "norm.weight")]).float(),
        tied=tied,
        embedding_rows=rows(embedding),
        head_row_reader=rows(embedding if tied else find("lm_head.weight")),
        token_texts=None,
    )


def _byte_level_text(token: str) -> str:
    """A byte-level BPE token (GPT-2's alphabet) as text; bytes that are no UTF-8 alone become U+FFFD."""
    table = _byte_alphabet()
    if not all(char in table for char in token):
        return token  # a control token such as <|im_start|> or a sentencepiece piece
    return bytes(table[char] for char in token).decode("utf-8", errors="replace")


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of every byte (openai/gpt-2 encoder.py, bytes_to_unicode)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
