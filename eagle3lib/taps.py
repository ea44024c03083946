"""Named activations of the pass, and where a server's recorded ones first differ from them.

    fused           g = fc(aux) at step 0; g', as fed back, at later steps      [R, H]
    embed_normed    rms(embed(token))                                           [R, H]
    hidden_normed   rms(g)                                                      [R, H]
    q, k            of every head, normed and turned                            [R, h*d], [R, kv*d]
    attention       what o_proj gives                                           [R, H]
    post_attention  rms(y)                                                      [R, H]
    mlp             what down_proj gives                                        [R, H]
    pre_norm        u, the residual stream after the last layer                 [R, H]
    logits          over the draft vocabulary                                   [R, Vd]

Those of a further layer begin with `layers.1.` and so on. `docs/recording_activations.md` says how to record
them in a server, and how the file is laid out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor

from eagle3lib import draft_head
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample
from eagle3lib.tensors import read_headers, read_tensor

TAPS = (
    "fused",
    "embed_normed",
    "hidden_normed",
    "q",
    "k",
    "attention",
    "post_attention",
    "mlp",
    "pre_norm",
    "logits",
)
#: Beside the taps in a file: the token that the draft read at each row, x[i + 1] at step 0.
TOKEN_IDS = "token_ids"

Activations = Mapping[str, Float[Tensor, "R _"]]


@torch.inference_mode()
def record(draft: Draft, sample: Sample, wiring: Wiring, steps: int = 1) -> list[dict[str, Tensor]]:
    """The pass's activations, one dictionary a step, in forward order: row i is pair i's.

    Raises:
        InputError: as `fusion.fuse`.
    """
    found: list[dict[str, Tensor]] = [{}]

    def tap(name: str, value: Tensor) -> None:
        found[-1][name] = value

    config = draft.config.under(wiring)
    for u in chain_states(draft, sample, wiring, steps, tap):
        found[-1]["logits"] = draft_head.logits(draft, u, config)
        found.append({})
    return found[:-1]


def compare(mine: Activations, recorded: Activations, tolerance: float = 0.02) -> pd.DataFrame:
    """One row a tap that both have, in forward order.

    Cosine alone hides a lost scale, so there are three columns beside it: the ratio of the norms (recorded over
    mine), the largest absolute difference with its row, and the norm of the difference over mine, by which a
    tap `differs`.

    Args:
        tolerance: of the last; bfloat16 activations of one layer stay below 0.02, float32 ones below 1e-4.

    Raises:
        InputError: if the two have no tap in common, or one has another shape in each.
    """
    rows = []
    for name in (name for name in mine if name in recorded):
        a, b = mine[name].float().cpu(), recorded[name].float().cpu()
        if a.shape != b.shape:
            raise InputError(
                f"The tap {name} is {list(a.shape)} here and {list(b.shape)} as recorded; compare the same rows of one"
                " sequence, recorded without tensor parallelism."
            )
        difference = a - b
        rows.append(
            {
                "tap": name,
                "norm_ratio": float(b.norm() / a.norm()),
                "max_abs": float(difference.abs().max()),
                "worst_row": int(difference.abs().amax(-1).argmax()),
                "cosine": float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0)),
                "relative": float(difference.norm() / a.norm()),
            }
        )
    if not rows:
        raise InputError(f"None of the recorded {', '.join(recorded) or 'nothing'} is a tap; known are {list(mine)}.")
    table = pd.DataFrame(rows)
    return table.assign(differs=~(table.relative <= tolerance))  # NaN differs


def first_mismatch(table: pd.DataFrame) -> str | None:
    """The first tap in forward order that differs: the fault is between it and the tap before."""
    differing = table.loc[table.differs, "tap"]
    return None if differing.empty else str(differing.iloc[0])


def common_rows(sample: Sample, recorded: Activations) -> int:
    """How many leading pairs of the sample the recording has, by the tokens that the draft read.

    A server's last row reads the token that it has just sampled, which a dump may not hold: it is left out.

    Raises:
        InputError: if not even the first row's token is the sample's, or the file holds no tokens.
    """
    if TOKEN_IDS not in recorded:
        raise InputError(f"The recording holds no {TOKEN_IDS}, so nothing says which sample it is of.")
    read: Int[Tensor, " R"] = recorded[TOKEN_IDS].long().cpu()
    own = sample.token_ids[1 : sample.n_pairs + 1]
    n = min(len(read), len(own))
    different = (read[:n] != own[:n]).nonzero().flatten()
    rows = int(different[0]) if len(different) else n
    if rows == 0:
        raise InputError(
            f"The recording begins with the tokens {read[:4].tolist()}, and the draft's inputs of {sample.name} with"
            f" {own[:4].tolist()}; record from the second token on, as the draft is fed, and of the same sample."
        )
    return rows


def recorded_sample(samples: Sequence[Sample], recorded: Activations) -> tuple[Sample, int]:
    """The sample that a recording is of, and how many leading pairs of it were recorded.

    Raises:
        InputError: if the recording is of none of them, as `common_rows`.
    """
    firsts = [s for s in samples if torch.equal(s.token_ids[1:3], recorded.get(TOKEN_IDS, s.token_ids[:0])[:2].long())]
    return max(((s, common_rows(s, recorded)) for s in firsts or samples[:1]), key=lambda found: found[1])


def leading(activations: Activations, rows: int) -> dict[str, Tensor]:
    """The first rows of every tap."""
    return {name: value[:rows] for name, value in activations.items()}


def read_activations(file: Path | str) -> dict[str, Tensor]:
    """A recording: tap name → [R, ...], and `token_ids` [R].

    Raises:
        InputError: if the file is missing or broken, or its tensors have different numbers of rows.
    """
    file = Path(file)
    found = {name: read_tensor(info) for name, info in read_headers([file]).items()}
    lengths = {name: len(tensor) for name, tensor in found.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"The tensors of {file} have different numbers of rows: {lengths}; record one pass.")
    return found


def save_activations(file: Path | str, activations: Activations, token_ids: Int[Tensor, " R"]) -> Path:
    """Write a recording that `read_activations` reads."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in activations.items()}
    save_file({**tensors, TOKEN_IDS: token_ids.cpu().contiguous()}, file)
    return Path(file)
