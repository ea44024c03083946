"""The living target, loaded whole from the GGUF file by transformers: it answers prompts and shows its states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

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
        self.tokenizer = AutoTokenizer.from_pretrained(GGUF.parent, gguf_file=GGUF.name)
        self.model = AutoModelForCausalLM.from_pretrained(GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32).eval()
        self.n_layers = self.model.config.num_hidden_layers

    def encode(self, prompt: str) -> list[int]:
        """A prompt through the chat template, up to where the assistant speaks."""
        messages = [{"role": "user", "content": prompt}]
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def capture(self, boundaries: Iterable[int]) -> Capture:
        """Record B(k) of every forward call within the block."""
        return Capture(self, tuple(boundaries))

    @torch.inference_mode()
    def respond(
        self, prompts: list[list[int]], boundaries: Iterable[int], temperature: float = 0.0, seed: int = 0
    ) -> list[Response]:
        """Answers to prompts of one length, greedy or sampled from the whole vocabulary."""
        torch.manual_seed(seed)
        length = len(prompts[0])
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with self.capture(boundaries) as capture:
            output = self.model.generate(
                input_ids=torch.tensor(prompts),
                attention_mask=torch.ones(len(prompts), length, dtype=torch.long),
                max_new_tokens=NEW_TOKENS,
                **(sampling if temperature else {"do_sample": False}),
            )
        responses = []
        for row, prompt in enumerate(prompts):
            answer = output[row, length:]
            end = (answer == END).nonzero()
            answer = answer[: int(end[0]) + 1] if len(end) else answer
            token_ids = torch.cat([torch.tensor(prompt), answer])
            states = {k: state[row, : len(token_ids) - 1].clone() for k, state in capture.states.items()}
            responses.append(Response(token_ids, length, states))
        return responses

    @torch.inference_mode()
    def prefill(self, token_ids: Tensor, boundaries: Iterable[int]) -> tuple[dict[int, Tensor], Tensor]:
        """B(k) [T, H] of one sequence, float32, and the log-probability [T] of each token (the first's is NaN)."""
        with self.capture(boundaries) as capture:
            logits = self.model(input_ids=token_ids[None]).logits[0]
        recorded = logits.log_softmax(-1)[:-1].gather(1, token_ids[1:, None])[:, 0]
        logprobs = torch.cat([torch.tensor([torch.nan]), recorded])
        return {k: state[0] for k, state in capture.raw.items()}, logprobs


class Capture:
    """Hooks before block k, and before the final norm for k = n: the residual stream, never normed."""

    def __init__(self, target: LivingTarget, boundaries: tuple[int, ...]) -> None:
        self._target, self._boundaries = target, boundaries
        self._pieces: dict[int, list[Tensor]] = {k: [] for k in boundaries}
        self._handles: list = []

    def __enter__(self) -> Capture:
        inner = self._target.model.model
        for k in self._boundaries:
            module = inner.norm if k == self._target.n_layers else inner.layers[k]
            self._handles.append(module.register_forward_pre_hook(self._hook(k), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, k: int):
        def hook(_module, args, kwargs) -> None:
            self._pieces[k].append((args[0] if args else kwargs["hidden_states"]).clone())

        return hook

    @property
    def raw(self) -> dict[int, Tensor]:
        """[B, T, H] in the model's dtype."""
        return {k: torch.cat(pieces, dim=1) for k, pieces in self._pieces.items()}

    @property
    def states(self) -> dict[int, Tensor]:
        """[B, T, H] in bfloat16, as dumps store them."""
        return {k: state.to(torch.bfloat16) for k, state in self.raw.items()}
