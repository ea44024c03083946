"""What tokens say, from the files beside a model; nothing of the model's own code runs."""

from __future__ import annotations

import base64
import binascii
import json
from functools import cache
from pathlib import Path

from eagle3lib.errors import InputError


def folder_texts(folder: Path) -> tuple[str, ...] | None:
    """Texts by id: from `tokenizer.json`, else from a file of tiktoken ranks, else None.

    Raises:
        InputError: if the file that is there cannot be read.
    """
    if (file := folder / "tokenizer.json").is_file():
        return _tokenizer_json(file)
    ranks = sorted([*folder.glob("*.tiktoken"), *folder.glob("tiktoken.model")])
    return _tiktoken(ranks[0], folder) if ranks else None


def _tokenizer_json(file: Path) -> tuple[str, ...]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = data["model"]["vocab"]
        if isinstance(vocabulary, dict):
            by_id = {index: token for token, index in vocabulary.items()}
        else:  # Unigram: pairs of token and score, in order
            by_id = dict(enumerate(token for token, _ in vocabulary))
        added = {int(token["id"]): token["content"] for token in data.get("added_tokens") or []}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is not a tokenizer of the usual form ({error}); copy it again.") from None
    if _byte_level(data.get("decoder")) or _byte_level(data.get("pre_tokenizer")):
        by_id = {index: byte_level_text(token) for index, token in by_id.items()}
    return _in_order(by_id | added)


def _byte_level(part: dict | None) -> bool:
    """Whether tokens are spelled in GPT-2's alphabet of bytes."""
    if not isinstance(part, dict):
        return False
    inner = part.get("decoders") or part.get("pretokenizers") or []
    return part.get("type") == "ByteLevel" or any(map(_byte_level, inner))


def _tiktoken(file: Path, folder: Path) -> tuple[str, ...]:
    """Lines of base64 token and rank; special tokens from `tokenizer_config.json` where it names them."""
    by_id: dict[int, str] = {}
    try:
        for line in file.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                by_id[int(rank)] = base64.b64decode(token, validate=True).decode("utf-8", errors="replace")
    except (ValueError, binascii.Error) as error:
        raise InputError(f"{file} is not a file of tiktoken ranks ({error}); copy it again.") from None
    if (config := folder / "tokenizer_config.json").is_file():
        try:
            named = json.loads(config.read_text(encoding="utf-8")).get("added_tokens_decoder") or {}
            by_id |= {int(index): token["content"] for index, token in named.items()}
        except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{config} does not name the special tokens in the usual form ({error}).") from None
    return _in_order(by_id)


def _in_order(by_id: dict[int, str]) -> tuple[str, ...]:
    """Texts up to the highest id; an id without a text stands as itself."""
    return tuple(by_id.get(index, f"<{index}>") for index in range(max(by_id, default=-1) + 1))


def byte_level_text(token: str) -> str:
    """A byte-level BPE token (GPT-2's alphabet) as text; bytes that are no UTF-8 alone become U+FFFD."""
    table = _byte_alphabet()
    if not all(char in table for char in token):
        return token  # a control token such as <|im_start|> or a sentencepiece piece
    return bytes(table[char] for char in token).decode("utf-8", errors="replace")


def visible(text: str) -> str:
    """A token's text for the eye: line breaks and tabs as signs, and a token of spaces alone as well."""
    shown = text.replace("\u2581", " ").replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥")
    return shown if shown.strip() else shown.replace(" ", "␣") or "∅"


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
