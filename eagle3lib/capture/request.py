"""A capture on disk: a request carried out sample by sample, and resumed where it stopped.

The folder is a dump in our own layout, with `request.json` beside the samples: what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import track

from eagle3lib.boundaries import Boundary
from eagle3lib.capture.states import Messages, Response, check_boundaries, encode, prefill, respond
from eagle3lib.capture.whole_target import WholeTarget
from eagle3lib.errors import InputError
from eagle3lib.own_layout import FILE_NAME, write_sample
from eagle3lib.results import write_json
from eagle3lib.tensors import read_json

STORED = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def capture(
    target: WholeTarget,
    prompts: Sequence[str | Messages | Sequence[int] | Response],
    folder: Path,
    boundaries: Sequence[Boundary],
    *,
    new_tokens: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    stored: Literal["bfloat16", "float32"] = "bfloat16",
    progress: bool = True,
) -> list[Path]:
    """Capture the states of prompts with their responses, a file a prompt, skipping files that are there.

    Args:
        prompts: each a prompt in words or chat messages, which go through the chat template; token ids; or a
            finished `Response`, as from a server, which is captured as it is.
        boundaries: of the states to store; B(n) is before the final norm.
        new_tokens: at most so many follow each prompt; 0 captures prompts as they are, with an empty loss mask.
        temperature: 0 is greedy, otherwise sampled from the whole vocabulary. Prompt i is sampled with the seed
            `seed` + i, alone, so that a resumed run writes what an uninterrupted one would have.
        stored: the dtype of states in the files.

    Raises:
        InputError: if the folder holds another request's samples, or a prompt or boundary cannot be used.
    """
    if stored not in STORED:
        raise InputError(f"States are stored as {' or '.join(STORED)}; found {stored!r}.")
    if temperature < 0 or new_tokens < 0:
        raise InputError(f"Expected 0 or more for temperature and new_tokens, found {temperature} and {new_tokens}.")
    check_boundaries(target, boundaries)
    items = [
        prompt if isinstance(prompt, Response) else _encoded(target, prompt, i) for i, prompt in enumerate(prompts)
    ]
    run_dtype = str(target.model.dtype).removeprefix("torch.")
    request = {
        "model": target.name,
        "run_dtype": run_dtype,
        "stored": stored,
        "boundaries": list(boundaries),
        "new_tokens": new_tokens,
        "temperature": temperature,
        "seed": seed,
        "prompts": _digest(items),
    }
    _claim(folder, request)
    metadata = {"model": target.name, "dtype_run": run_dtype, "engine": f"transformers {version('transformers')}"}
    files = [folder / FILE_NAME.format(i) for i in range(len(items))]
    for i in track([i for i, file in enumerate(files) if not file.exists()], "capturing", disable=not progress):
        item = items[i]
        if isinstance(item, list):
            item = respond(target, [item], new_tokens, temperature, seed + i)[0] if new_tokens else _unanswered(item)
        states, logprobs = prefill(target, item.token_ids, boundaries, STORED[stored])
        known = {} if item.temperature is None else {"temperature": str(item.temperature)}
        write_sample(
            folder, i, item.token_ids, item.loss_mask, states, logprobs=logprobs, metadata={**metadata, **known}
        )
    return files


def _encoded(target: WholeTarget, prompt: str | Messages | Sequence[int], i: int) -> list[int]:
    words = isinstance(prompt, str) or prompt and all(isinstance(message, Mapping) for message in prompt)
    ids = encode(target, prompt) if words else list(prompt)
    if not ids or not all(isinstance(t, int) and 0 <= t < target.vocab_size for t in ids):
        raise InputError(
            f"Expected prompt {i} to be words, chat messages or token ids below {target.vocab_size}, found {ids[:5]}."
        )
    return ids


def _unanswered(ids: list[int]) -> Response:
    return Response(torch.tensor(ids), torch.zeros(len(ids), dtype=torch.bool))


def _digest(items: Sequence[list[int] | Response]) -> str:
    """Of every prompt's tokens and mask, so that a folder's samples are known to be those asked for."""
    digest = sha256()
    for item in items:
        plain = item if isinstance(item, list) else [item.token_ids.tolist(), item.loss_mask.tolist()]
        digest.update(json.dumps(plain).encode())
    return f"{len(items)}, sha256 {digest.hexdigest()[:16]}"


def _claim(folder: Path, request: dict[str, Any]) -> None:
    """Write the request down, or hold it against the one that the folder's samples were made by."""
    path = folder / "request.json"
    if not path.exists():
        if any(folder.glob("sample_*.safetensors")):
            raise InputError(f"{folder} holds samples and no request.json that says of what; give another folder.")
        write_json(path, request)
        return
    before = read_json(path)
    for key, asked in request.items():
        if before.get(key) != asked:
            raise InputError(
                f"{folder} holds samples of another request: {key} was {before.get(key)} and now is {asked}; give"
                " another folder, or delete this one."
            )
