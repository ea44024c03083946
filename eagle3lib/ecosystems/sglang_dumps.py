"""SGLang's responses with hidden states: `.json` files (a response or a list of them), or `.jsonl`, one a line.

Sources, in sgl-project/sglang: managers/tokenizer_manager.py (`meta_info`), layers/logits_processor.py. In
`meta_info.hidden_states` the prompt's rows come first, as one list of rows, then a row for each token but the last
that was generated: T - 1 rows. They are the last state behind the final norm, or with
--enable-return-aux-hidden-states the captured ones concatenated instead. Token ids are `input_ids` (of the request,
to be saved with the response) or those of `input_token_logprobs` from position 0, and `output_ids` or those of
`output_token_logprobs`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lib.axes import HIDDEN, TOKENS, Known, split_states
from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.ecosystems._files import named, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample
from eagle3lib.errors import InputError

#: Characters of one response: a row of 4096 numbers takes some 50 kB.
LONGEST = 2**30


class ResponseLayout(Layout):
    """JSON, of which one response is held at a time."""

    name = "sglang"
    label = "SGLang's responses (.jsonl)"

    def fits(self, glance: Glance) -> bool:
        """By the first and last characters of a file; a manifest of shards is no response."""
        return any(_mentions(file, '"meta_info"') for file in glance.files(".json", ".jsonl"))

    def files(self, folder: Path) -> Iterator[Path]:
        return named(folder, "", (".json", ".jsonl"))

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        for i, response in enumerate(_responses(file)):
            yield _sample(response, f"{file.name}[{i}]", known)

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        """One state is the last one, normed; as many as `fc` has slots are these."""
        if len(stored.states) == 1:
            return (FINAL_NORMED,)
        return origin.slots if origin.slots and len(stored.states) == len(origin.slots) else None


LAYOUTS = (ResponseLayout(),)


def _mentions(file: Path, word: str) -> bool:
    """Whether the first or last bytes of a file hold a word."""
    try:
        with file.open("rb") as stream:
            head = stream.read(2**16)
            stream.seek(max(0, file.stat().st_size - 2**16))
            text = (head + stream.read(2**16)).decode("utf-8", "replace")
    except OSError:
        return False
    return word in text


def _responses(file: Path) -> Iterator[Any]:
    """Each response of a file, parsed alone where it has a line of its own."""
    if file.suffix == ".jsonl":
        with file.open("rb") as stream:
            while line := stream.readline(LONGEST):
                if line.strip():
                    yield _parsed(line, file)
        return
    if file.stat().st_size > LONGEST:
        raise InputError(f"{file} is larger than {LONGEST} bytes; save the responses as .jsonl, one a line.")
    data = _parsed(file.read_bytes(), file)
    yield from data if isinstance(data, list) else [data]


def _parsed(text: bytes, file: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # among them what is no UTF-8, and numbers of thousands of digits
        raise InputError(f"{file} is not JSON: {str(error)[:200]}.") from None


def _sample(response: Any, name: str, known: Known) -> StoredSample:
    meta = response.get("meta_info") if isinstance(response, dict) else None
    if not isinstance(meta, dict) or not isinstance(meta.get("hidden_states"), list):
        raise InputError(f"Expected a response with a list meta_info.hidden_states in {name}, found none.")
    prompt = _ids(response.get("input_ids"), meta.get("input_token_logprobs"), "input_ids", name)
    generated = _ids(response.get("output_ids"), meta.get("output_token_logprobs"), "output_ids", name)
    if (n := meta.get("prompt_tokens")) is not None and n != len(prompt):
        raise InputError(
            f"Expected the prompt's {n} token ids in {name}, found {len(prompt)}; save the request's input_ids with the"
            " response, or ask for logprobs from position 0."
        )
    token_ids = torch.cat([prompt, generated])
    mask = torch.arange(len(token_ids)) >= len(prompt)
    rows = _rows(meta["hidden_states"], name)
    states = split_states(rows, len(token_ids), known, f"hidden_states of {name}", documented=(TOKENS, HIDDEN))
    # A response of one token is a sequence given whole: what of it was generated, the case must say.
    return StoredSample(name, token_ids, states, None if len(generated) == 1 else mask)


def _ids(listed: Any, logprobs: Any, key: str, name: str) -> Tensor:
    """Token ids as listed, or from [log-probability, id, text] triples."""
    if listed is None and isinstance(logprobs, list):
        listed = [entry[1] if isinstance(entry, list) and len(entry) > 1 else None for entry in logprobs]
    if not isinstance(listed, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in listed) or not listed:
        raise InputError(f"Expected the token ids {key} in {name}; save them with the response.")
    return token_row_ids(torch.tensor(listed), name)


def _rows(found: list, name: str) -> Tensor:
    """The prompt's rows and those of generated tokens, one under another."""
    try:
        parts = [torch.tensor(part, dtype=torch.float32) for part in found]
        return torch.cat([part if part.ndim == 2 else part.reshape(1, -1) for part in parts])
    except (TypeError, ValueError, RuntimeError, OverflowError, IndexError) as error:
        raise InputError(f"Expected rows of numbers as the hidden_states of {name} ({str(error)[:120]}).") from None
