"""The target's embedding, final norm, head and token texts: all of the target that is ever read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.folders import name_trouble
from eagle3lib.norm import rms_norm
from eagle3lib.sampling import Distribution, Sampling, chunked_distribution

#: Rows of the head that are held in float32 at a time.
VOCAB_CHUNK = 16384
#: Logits that a chunk may have where many rows are asked, in float32: 64 MiB.
CHUNK_LOGITS = 2**24


class Rows(Protocol):
    """A [V, H] table of which only the rows asked for are read."""

    def __call__(self, ids: Tensor) -> Float[Tensor, "T H"]: ...


@dataclass(frozen=True)
class Scores:
    """What the target's last state says of the recorded next tokens, per row."""

    logprob: Float[Tensor, "T ..."]  # of the recorded token, natural logarithm
    argmax: Int[Tensor, " T"]
    entropy: Float[Tensor, " T"] | None = None  # of the whole distribution, in nats


@dataclass(frozen=True)
class Target:
    """The parts of a target that an investigation needs; the blocks are never loaded.

    Attributes:
        architecture: Hugging Face's name, such as "LlamaForCausalLM"; engines' layer-id rules depend on it.
        tied: whether the head is the embedding.
        read_texts: reads the tokens' texts, None where no file beside the weights has them; called once.
        padding_rows: rows of the embedding beyond the vocabulary, which are no tokens and never chosen.
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
    read_texts: Callable[[], Sequence[str] | None]
    padding_rows: int = 0

    @cached_property
    def token_texts(self) -> Sequence[str] | None:
        """Texts by id, read when first asked for."""
        return self.read_texts()

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

    def score(
        self,
        normed: Float[Tensor, "T H"],
        next_ids: Int[Tensor, "T ..."],
        *,
        among: Int[Tensor, " D"] | None = None,
        entropy: bool = False,
    ) -> Scores:
        """Log-probability of each row's recorded next token, and the argmax, over the whole vocabulary.

            logp = z[x] - logsumexp(z),   z = normed · headᵀ

        The head is read in chunks of `VOCAB_CHUNK` rows; no [T, V] block is made.

        Args:
            next_ids: one id a row, or several [T, S] of which one pass gives all; -1 stands for none, and has the
                log-probability -inf.
            among: the distribution is over these ids alone, as a teacher's over a draft vocabulary.
            entropy: whether the distribution's entropy is wanted too.
        """
        vocabulary = torch.arange(self.vocab_size) if among is None else among.cpu().sort().values
        n = len(next_ids)
        total = torch.full((n,), -torch.inf)
        best = torch.full((n,), -torch.inf)
        mean = torch.zeros(n)  # of the logits under the distribution so far
        argmax = torch.zeros(n, dtype=torch.long)
        recorded = torch.full((n, next_ids[0].numel() if n else 1), -torch.inf)
        wanted = next_ids.reshape(recorded.shape)
        for ids in vocabulary.split(VOCAB_CHUNK):
            logits = normed @ self.head_row_reader(ids).T  # [T, chunk]
            part = logits.logsumexp(-1)
            before, total = total, torch.logaddexp(total, part)
            value, index = logits.max(-1)
            argmax = torch.where(value > best, ids[index], argmax)
            best = torch.maximum(best, value)
            column = torch.searchsorted(ids, wanted.contiguous()).clamp(max=len(ids) - 1)
            recorded = torch.where(ids[column] == wanted, logits.gather(1, column), recorded)
            if entropy:
                inside = (logits.softmax(-1) * logits).sum(-1)
                mean = mean * (before - total).exp() + inside * (part - total).exp()
        logprob = (recorded - total[:, None]).reshape(next_ids.shape)
        return Scores(logprob, argmax, total - mean if entropy else None)

    def distribution(self, normed: Float[Tensor, "T H"], ids: Int[Tensor, "T M"], sampling: Sampling) -> Distribution:
        """What each row's distribution over the vocabulary, as an engine samples from it, says of some tokens.

        Args:
            ids: of each row, the tokens asked for; -1 for none.
        """

        def chunks(rows: Int[Tensor, " R"]) -> Iterator[tuple[int, Tensor]]:
            own = normed if len(rows) == len(normed) else normed[rows]
            size = min(VOCAB_CHUNK, max(CHUNK_LOGITS // max(len(own), 1), 256))
            for begin in range(0, self.vocab_size, size):
                chunk = torch.arange(begin, min(begin + size, self.vocab_size))
                yield begin, own @ self.head_row_reader(chunk).T

        return chunked_distribution(chunks, len(normed), self.vocab_size, ids, sampling)

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
    from eagle3lib import target_folder, target_gguf  # here, since the readers make a Target

    path = Path(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(
                name_trouble(path)
                or f"Expected the target's GGUF file at {path}, found none; for the bundled case run ./run_all.sh once."
            )
        return target_gguf.load(path)
    if path.is_dir():
        files = [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
        return target_gguf.load(files[0]) if len(files) == 1 else target_folder.load(path)
    raise InputError(
        f"Expected a GGUF file or a Hugging Face folder at {path}, found {'a file' if path.exists() else 'nothing'}."
    )
