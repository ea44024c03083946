"""Hidden states of a whole target, and the responses that it gives.

States are taken by hooks on the residual stream: B(k) is what block k reads, and B(n) what the final norm reads,
that is before the norm; final_normed is what the norm gives. They come from one pass over the finished sequence,
not from its generation: every row, the last token's too, is then of the same pass as the recorded
log-probabilities, whatever cache or batch a generation used, and a sequence that a server generated is captured in
the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.capture.whole_target import WholeTarget, first_input, plain_generation
from eagle3lib.errors import InputError

#: Logits held at a time, so that no block of all tokens by the whole vocabulary is made: 64 MiB in float32.
LOGIT_BLOCK = 2**24

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Response:
    """A finished sequence: a prompt and what followed.

    Attributes:
        token_ids: [T].
        loss_mask: [T], True where the target generated the token.
        temperature: at which it did; 0 is greedy, None unknown.
        states: [T - 1, H] by boundary, where a generation was asked for them: the last token was never an input.
    """

    token_ids: Int[Tensor, " T"]
    loss_mask: Bool[Tensor, " T"]
    temperature: float | None = None
    states: Mapping[Boundary, Float[Tensor, "R H"]] = field(default_factory=dict, repr=False)


def check_boundaries(target: WholeTarget, boundaries: Sequence[Boundary]) -> None:
    """Raises an InputError where no boundary is named, one twice, or one that the target does not have."""
    known = f"B(0) to B({target.n_layers}) and {FINAL_NORMED!r}"
    for boundary in boundaries:
        if boundary != FINAL_NORMED and not (isinstance(boundary, int) and 0 <= boundary <= target.n_layers):
            raise InputError(f"{target.name} has the boundaries {known}; found {boundary!r} among those to capture.")
    if not boundaries or len(set(boundaries)) < len(boundaries):
        raise InputError(f"Name each boundary to capture once, of {known}; found {list(boundaries)}.")


@contextmanager
def recording(
    target: WholeTarget, boundaries: Sequence[Boundary], dtype: torch.dtype | None = None
) -> Iterator[Callable[[], dict[Boundary, Float[Tensor, "B T H"]]]]:
    """Record states of every forward call within the block; the calls of one generation follow each other.

    Yields a function that gives the states so far, on the CPU, in `dtype` or in that of the run.

    Raises:
        InputError: for a boundary that the target does not have.
    """
    if boundaries:
        check_boundaries(target, boundaries)
    pieces: dict[Boundary, list[Tensor]] = {boundary: [] for boundary in boundaries}

    def keep(boundary: Boundary, state: Tensor) -> None:
        pieces[boundary].append(state.to("cpu", dtype or state.dtype, copy=True))  # a copy: blocks may add in place

    handles = []
    for boundary in boundaries:
        if boundary == FINAL_NORMED:
            handles.append(target.final_norm.register_forward_hook(lambda _m, _i, out: keep(FINAL_NORMED, out)))
        else:
            reader = target.final_norm if boundary == target.n_layers else target.blocks[boundary]
            handles.append(
                reader.register_forward_pre_hook(
                    lambda _m, args, kwargs, b=boundary: keep(b, first_input(args, kwargs)), with_kwargs=True
                )
            )
    try:
        yield lambda: {boundary: torch.cat(states, dim=1) for boundary, states in pieces.items()}
    finally:
        for handle in handles:
            handle.remove()


def encode(target: WholeTarget, prompt: str | Messages) -> list[int]:
    """Token ids of a prompt, or of chat messages, through the chat template, up to where the assistant speaks.

    Raises:
        InputError: if the target has no tokenizer or no chat template.
    """
    if getattr(target.tokenizer, "chat_template", None) is None:
        missing = "tokenizer" if target.tokenizer is None else "chat template"
        raise InputError(f"A prompt in words needs a chat template and {target.name} has no {missing}; give token ids.")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@torch.inference_mode()
def respond(
    target: WholeTarget,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    boundaries: Sequence[Boundary] = (),
    dtype: torch.dtype | None = None,
) -> list[Response]:
    """Responses to prompts of one length, so that none is padded: greedy, or sampled from the whole vocabulary.

    Each ends after its first end token, or after `new_tokens`. With `boundaries` they carry the states that the
    generation itself went through.
    """
    length = len(prompts[0])
    ids = torch.tensor(prompts, dtype=torch.long, device=target.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    settings = sampling if temperature else {"do_sample": False}
    devices = [target.device] if target.device.type == "cuda" else []
    with torch.random.fork_rng(devices), recording(target, boundaries, dtype) as recorded:
        torch.manual_seed(seed)
        with plain_generation(target.model):
            mask = torch.ones_like(ids)
            output = target.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new_tokens, **settings)
    states, ends = recorded() if boundaries else {}, _end_ids(target)
    responses = []
    for row, tokens in enumerate(output.cpu()):
        ended = torch.isin(tokens[length:], ends).nonzero()
        tokens = tokens[: length + int(ended[0]) + 1] if len(ended) else tokens
        own = {boundary: state[row, : len(tokens) - 1].clone() for boundary, state in states.items()}
        responses.append(Response(tokens.clone(), torch.arange(len(tokens)) >= length, temperature, own))
    return responses


@torch.inference_mode()
def prefill(
    target: WholeTarget,
    token_ids: Int[Tensor, " T"],
    boundaries: Sequence[Boundary],
    dtype: torch.dtype | None = None,
) -> tuple[dict[Boundary, Float[Tensor, "T H"]], Float[Tensor, " T"]]:
    """States of one sequence, a row for every token, and the log-probability of each token (the first's is NaN).

    Raises:
        InputError: for a boundary that the target does not have.
    """
    with recording(target, boundaries, dtype) as recorded, recording(target, [FINAL_NORMED]) as last:
        # The model below the head: the whole one would make the logits of all tokens at once.
        target.model.base_model(input_ids=token_ids[None].to(target.device), use_cache=False)
    states = {boundary: state[0] for boundary, state in recorded().items()}
    return states, token_logprobs(target, last()[FINAL_NORMED][0], token_ids)


def token_logprobs(
    target: WholeTarget, normed: Float[Tensor, "T H"], token_ids: Int[Tensor, " T"]
) -> Float[Tensor, " T"]:
    """log p(x[t] | x[0] .. x[t - 1]) at temperature 1 from rows of final_normed; NaN for x[0]."""
    found = [torch.tensor([torch.nan])]
    for rows in row_blocks(len(token_ids) - 1, target.vocab_size):
        following = token_ids[rows.start + 1 : rows.stop + 1]
        logprobs = target.logits(normed[rows]).log_softmax(-1)
        found.append(logprobs.gather(1, following[:, None].to(logprobs.device))[:, 0].cpu())
    return torch.cat(found)


def row_blocks(n_rows: int, vocab_size: int) -> Iterator[slice]:
    """Rows in blocks of at most `LOGIT_BLOCK` logits."""
    step = max(1, LOGIT_BLOCK // vocab_size)
    for begin in range(0, n_rows, step):
        yield slice(begin, min(begin + step, n_rows))


def _end_ids(target: WholeTarget) -> Int[Tensor, " E"]:
    """The tokens that end a response; a checkpoint names none, one or several."""
    ends = target.model.generation_config.eos_token_id
    return torch.tensor([] if ends is None else ends, dtype=torch.long).flatten()
