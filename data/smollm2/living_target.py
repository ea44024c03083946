"""The living target, loaded whole from the GGUF file by transformers: it answers prompts and shows its states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3lib.capture import encode, load_whole_target, prefill, respond

GGUF = Path(__file__).parent / "target" / "SmolLM2-135M-Instruct.Q4_1.gguf"
NEW_TOKENS = 160
END = 2  # <|im_end|>


@dataclass(frozen=True)
class Response:
    """A prompt with its answer. `states[k]` is B(k) of every token but the last, which was never an input."""

    token_ids: Tensor  # [T] int64
    prompt_length: int
    states: dict[int, Tensor]  # [T - 1, H] bfloat16


class LivingTarget:
    """SmolLM2-135M-Instruct in float32, its linear weights dequantised from Q4_1."""

    def __init__(self) -> None:
        self.whole = load_whole_target(GGUF, "float32", "cpu")
        self.model = self.whole.model
        self.n_layers = self.whole.n_layers

    def encode(self, prompt: str) -> list[int]:
        """A prompt through the chat template, up to where the assistant speaks."""
        return encode(self.whole, prompt)

    def respond(
        self, prompts: list[list[int]], boundaries: Iterable[int], temperature: float = 0.0, seed: int = 0
    ) -> list[Response]:
        """Answers to prompts of one length, greedy or sampled from the whole vocabulary."""
        found = respond(self.whole, prompts, NEW_TOKENS, temperature, seed, tuple(boundaries), torch.bfloat16)
        return [Response(r.token_ids, len(prompt), r.states) for r, prompt in zip(found, prompts, strict=True)]

    def prefill(self, token_ids: Tensor, boundaries: Iterable[int]) -> tuple[dict[int, Tensor], Tensor]:
        """B(k) [T, H] of one sequence, float32, and the log-probability [T] of each token (the first's is NaN)."""
        return prefill(self.whole, token_ids, tuple(boundaries))
