"""A target from a GGUF file."""

from __future__ import annotations

from pathlib import Path

from eagle3lib.errors import InputError
from eagle3lib.gguf_file import GGUFFile, open_gguf
from eagle3lib.target import Rows, Target
from eagle3lib.token_text import byte_level_text

#: Hugging Face's names of llama.cpp's architectures.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "deepseek2": "DeepseekV3ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


def load(path: Path) -> Target:
    """Open the file.

    Raises:
        InputError: if it is missing or broken, or lacks a needed tensor or number.
    """
    file = open_gguf(path)

    def rows(name: str) -> Rows:
        if name not in file.shapes:
            raise InputError(f"Expected the tensor {name} in {path}, found none.")
        return lambda ids: file.read(name, ids).float()

    family = file.value("general.architecture")
    embedding = rows("token_embd.weight")
    rows("output_norm.weight")
    tied = "output.weight" not in file.shapes
    theta = f"{family}.rope.freq_base"
    return Target(
        path=path,
        architecture=ARCHITECTURES.get(family),
        n_layers=int(file.value(f"{family}.block_count")),
        hidden_size=int(file.value(f"{family}.embedding_length")),
        vocab_size=file.shapes["token_embd.weight"][0][0],
        norm_eps=float(file.value(f"{family}.attention.layer_norm_rms_epsilon")),
        rope_theta=float(file.value(theta)) if file.has(theta) else None,
        norm_weight=file.read("output_norm.weight").float(),
        tied=tied,
        embedding_rows=embedding,
        head_row_reader=embedding if tied else rows("output.weight"),
        read_texts=lambda: _texts(file),
    )


def _texts(file: GGUFFile) -> tuple[str, ...] | None:
    """Token texts; only byte-level vocabularies are spelled in GPT-2's alphabet."""
    if not file.has("tokenizer.ggml.tokens"):
        return None
    tokens = file.value("tokenizer.ggml.tokens")
    byte_level = file.has("tokenizer.ggml.model") and file.value("tokenizer.ggml.model") == "gpt2"
    return tuple(map(byte_level_text, tokens)) if byte_level else tuple(tokens)
