"""Makes the bundled case again from nothing: tokens, draft, dumps, claim.

    python data/smollm2/prepare.py            every stage that is not done yet
    python data/smollm2/prepare.py STAGE      that stage and the missing ones before it

Every stage leaves its result in `work/` (ignored by git) or in the committed folders, and is skipped where
that exists; delete a result to make it again. Needs the test oracles (`./run_all.sh test` installs them).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import prompts
import torch
import train_draft
from living_target import END, LivingTarget
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from torch import Tensor

HERE = Path(__file__).parent
WORK = HERE / "work"
N_PROMPTS = 3456  # training prompts, of which
N_BATCHES = 25  # batches are answered
BATCH = 96  # prompts of one length answered together
STATES = (3, 16, 30)  # kept of the training answers; B(0) is the embedding row
EPOCHS = 3
FIVE = (0, 3, 16, 28, 30)
FOUR = (0, 3, 16, 30)
LISTED = (0, 3, 16, 28)
TEMPERATURE = 0.8
#: Response tokens that each dump holds at least; the last sample counts towards them.
FIVE_TOKENS, EVERY_TOKENS, SAMPLED_TOKENS, N_LISTED = 2000, 420, 600, 2
#: What a repair is fitted from and onto, and how many tokens of the training answers for it.
REPAIRED, REPAIR_TOKENS = (0, 2, 3, 15, 16, 27, 28, 30), 22000


def answer_training_prompts() -> None:
    """Stage `answers`: greedy answers to the training prompts, with states, a file a batch."""
    folder = WORK / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    target = LivingTarget()
    encoded = [target.encode(prompt) for prompt in prompts.train_prompts()[:N_PROMPTS]]
    for i, batch in enumerate(_same_length_batches([len(ids) for ids in encoded])[:N_BATCHES]):
        file = folder / f"{i:04d}.safetensors"
        if not file.exists():
            responses = target.respond([encoded[j] for j in batch], STATES)
            tensors = {
                "prompt_index": torch.tensor(batch),
                "length": torch.tensor([len(r.token_ids) for r in responses]),
                "prompt_length": torch.tensor([r.prompt_length for r in responses]),
                "token_ids": torch.cat([r.token_ids for r in responses]).to(torch.int32),
                **{f"boundary.{k}": torch.cat([r.states[k] for r in responses]) for k in STATES},
            }
            _save(tensors, file)
            print(f"answers: batch {i}, {len(batch)} prompts", flush=True)


def _same_length_batches(lengths: list[int]) -> list[list[int]]:
    """Indices in batches of one prompt length, so that no batch needs padding; shuffled, so that any prefix of
    the batches is a fair sample."""
    by_length: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        by_length.setdefault(length, []).append(i)
    batches = [group[j : j + BATCH] for _, group in sorted(by_length.items()) for j in range(0, len(group), BATCH)]
    random.Random(0).shuffle(batches)
    return batches


@dataclass(frozen=True)
class Answer:
    """One training answer; its states are `rows` of its file: every token's but the last one's."""

    file: Path
    rows: slice
    token_ids: Tensor
    prompt_length: int


class Answers(list[Answer]):
    """The training answers on disk; tokens are held, states are read one answer at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._handles = {}
        for file in sorted((WORK / "answers").glob("*.safetensors")):
            handle = self._handles[file] = safe_open(file, framework="pt")
            lengths, prompt_lengths = (handle.get_tensor(name).tolist() for name in ("length", "prompt_length"))
            first_row = 0
            for token_ids, prompt_length in zip(
                handle.get_tensor("token_ids").long().split(lengths), prompt_lengths, strict=True
            ):
                rows = slice(first_row, first_row + len(token_ids) - 1)
                self.append(Answer(file, rows, token_ids, prompt_length))
                first_row = rows.stop

    def response_counts(self) -> dict[int, int]:
        """How often each token occurs in the answers."""
        counter: Counter[int] = Counter()
        for answer in self:
            counter.update(answer.token_ids[answer.prompt_length :].tolist())
        return dict(counter)

    def sequence(self, i: int, embedding: Tensor) -> train_draft.Sequence:
        """Training sequence i: the last token of an answer has no state and is left out."""
        answer = self[i]
        low, middle, last = (self._handles[answer.file].get_slice(f"boundary.{k}")[answer.rows] for k in STATES)
        token_ids = answer.token_ids[:-1]
        first = embedding[token_ids].to(torch.bfloat16)
        mask = torch.arange(len(token_ids)) >= answer.prompt_length
        return train_draft.Sequence(token_ids, mask, torch.cat([first, low, middle], dim=-1), last)


def save_verifier() -> None:
    """Stage `verifier`: the parts of the target that the library loads, as a Hugging Face folder."""
    folder = WORK / "verifier"
    folder.mkdir(parents=True, exist_ok=True)
    target = LivingTarget()
    config = target.model.config.to_dict()
    config.pop("quantization_config", None)
    config.update(_name_or_path="", dtype="float32", architectures=["LlamaForCausalLM"])
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    state = target.model.state_dict()
    names = ("model.embed_tokens.weight", "model.norm.weight")
    _save({name: state[name].float().contiguous().clone() for name in names}, folder / "model.safetensors")


def train() -> None:
    """Stage `draft`: train, and save with the library's own `save_pretrained`, without the frozen embedding."""
    torch.manual_seed(0)
    answers = Answers()
    embedding = load_file(WORK / "verifier" / "model.safetensors")["model.embed_tokens.weight"]
    model = train_draft.new_draft(WORK / "verifier", answers.response_counts())
    lengths = [len(answer.token_ids) - 1 for answer in answers]
    history = train_draft.train(
        model, lambda i: answers.sequence(i, embedding), lengths, EPOCHS, WORK / "training_state.pt"
    )
    (WORK / "history.json").write_text(json.dumps(history))
    model.to(torch.bfloat16).save_pretrained(WORK / "trained")
    draft = HERE / "draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    tensors = load_file(WORK / "trained" / "model.safetensors")
    _save({name: t for name, t in tensors.items() if name != "embed_tokens.weight"}, draft / "model.safetensors")
    config = json.loads((WORK / "trained" / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = None  # a path of one machine means nothing elsewhere
    config.pop("auto_map", None)  # names a Python file of the library, which is not shipped
    (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_dumps() -> None:
    """Stage `dumps`: held-out answers from a float32 run, states stored in bfloat16."""
    target = LivingTarget()
    shutil.rmtree(HERE / "dumps", ignore_errors=True)
    encoded = sorted((target.encode(p) for p in prompts.held_out_prompts()), key=len)[:96]
    random.Random(2).shuffle(encoded)
    every = _until(target, encoded, EVERY_TOKENS)
    five = _until(target, encoded, FIVE_TOKENS)
    listed = [_answer(target, ids) for ids in _take(encoded, N_LISTED)]
    sampled = _until(target, encoded, SAMPLED_TOKENS, TEMPERATURE)
    n = target.n_layers
    for name, answers, boundaries in (
        ("five", five, FIVE),
        ("every", every, tuple(range(n + 1))),
        ("sampled", sampled, FOUR),
    ):
        _write_current(target, HERE / "dumps" / name, answers, boundaries)
    folder = HERE / "dumps" / "listed"
    folder.mkdir(parents=True)
    for i, (ids, prompt_length) in enumerate(listed):
        states, _ = target.prefill(ids, LISTED)
        torch.save(
            {
                "input_ids": ids,
                "hidden_states": [states[k].to(torch.bfloat16) for k in LISTED],
                "loss_mask": torch.arange(len(ids)) >= prompt_length,
            },
            folder / f"data_{i}.pt",
        )


def _take(pool: list[list[int]], n: int) -> list[list[int]]:
    """The next n prompts of the pool, removed from it."""
    taken = pool[:n]
    del pool[:n]
    return taken


def _answer(target: LivingTarget, ids: list[int], temperature: float = 0.0) -> tuple[Tensor, int]:
    response = target.respond([ids], (), temperature)[0]
    return response.token_ids, response.prompt_length


def _until(
    target: LivingTarget, pool: list[list[int]], tokens: int, temperature: float = 0.0
) -> list[tuple[Tensor, int]]:
    """Answers to the next prompts until they hold at least `tokens` response tokens."""
    answers: list[tuple[Tensor, int]] = []
    while sum(len(ids) - prompt_length for ids, prompt_length in answers) < tokens:
        answers.append(_answer(target, _take(pool, 1)[0], temperature))
    return answers


def _write_current(
    target: LivingTarget, folder: Path, answers: list[tuple[Tensor, int]], boundaries: tuple[int, ...]
) -> None:
    """speculators' current layout: an Arrow data set, and one safetensors file a sample."""
    from datasets import Dataset

    masks = [(torch.arange(len(ids)) >= prompt_length).long() for ids, prompt_length in answers]
    Dataset.from_dict(
        {
            "input_ids": [ids.tolist() for ids, _ in answers],
            "loss_mask": [mask.tolist() for mask in masks],
            "seq_len": [len(ids) for ids, _ in answers],
        }
    ).save_to_disk(folder)
    (folder / "hidden_states").mkdir()
    for i, (ids, _) in enumerate(answers):
        states, logprobs = target.prefill(ids, boundaries)
        stacked = torch.stack([states[k].to(torch.bfloat16) for k in boundaries], dim=1)
        tensors = {"hidden_states": stacked, "token_ids": ids, "token_logprobs": logprobs}
        _save(tensors, folder / "hidden_states" / f"hs_{i}.safetensors")


def write_tokens() -> None:
    """Stage `tokens`: all token ids, uint16, each answer's length and prompt length beside them."""
    from eagle3lib import load_case
    from eagle3lib.investigation import Investigation

    (HERE / "tokens").mkdir(exist_ok=True)
    inv = Investigation(load_case(HERE / "case.toml"), "cpu")
    held_out = [sample for section in inv.case.dumps for sample in inv.open(section, [])]
    answers = Answers()
    for name, token_ids, prompt_lengths in (
        ("train", [a.token_ids for a in answers], [a.prompt_length for a in answers]),
        ("held_out", [s.token_ids for s in held_out], [s.turns[0].begin for s in held_out]),
    ):
        np.savez_compressed(
            HERE / "tokens" / f"{name}.npz",
            token_ids=torch.cat(token_ids).numpy().astype(np.uint16),
            length=np.array([len(ids) for ids in token_ids], dtype=np.uint16),
            prompt_length=np.array(prompt_lengths, dtype=np.uint16),
        )


def write_claim() -> None:
    """Stage `claim`: the library's own numbers on the committed greedy samples, and what it was trained on."""
    model = load_library_draft()
    sequences = [
        sequence
        for name, boundaries in (("five", FIVE), ("every", tuple(range(31))))
        for sequence in dumped_sequences(HERE / "dumps" / name, boundaries)
    ]
    totals = train_draft.counts(model, sequences)
    answers = Answers()
    looping = [_loops(answer.token_ids[answer.prompt_length :]) for answer in answers]
    claim = {
        "library": "speculators",
        "version": version("speculators"),
        "boundaries": list(train_draft.SLOTS),
        "teacher": train_draft.TEACHER,
        "ttt_steps": train_draft.TTT_STEPS,
        "samples": ["dumps/five", "dumps/every"],
        "counts": totals,
        "full_acc": _rates(totals, "full_acc"),
        "cond_acc": _rates(totals, "cond_acc"),
        "training": {
            "prompts": len(answers),
            "response_tokens": sum(len(answer.token_ids) - answer.prompt_length for answer in answers),
            "looping_rate": round(sum(looping) / len(looping), 4),
            "epochs": EPOCHS,
            "batches": json.loads((WORK / "history.json").read_text())[::10],
        },
    }
    (HERE / "training.json").write_text(json.dumps(claim, indent=2) + "\n")


def capture_for_repair() -> None:
    """Stage `repair`: states of training answers and of held-out ones, captured again from the committed tokens.

    In this package's own layout, under `work/repair/`. The training answers are drawn from all kinds of prompts.
    """
    from eagle3lib.own_layout import FILE_NAME, write_sample

    target = LivingTarget()
    notes = {"temperature": "0.0", "model": "SmolLM2-135M-Instruct.Q4_1", "dtype_run": "float32"}
    for name in ("held_out", "train"):
        folder = WORK / "repair" / name
        for i, (ids, prompt_length) in enumerate(_committed(name)):
            if not (folder / FILE_NAME.format(i)).exists():
                states, logprobs = target.prefill(ids, REPAIRED)
                narrow = {k: state.to(torch.bfloat16) for k, state in states.items()}
                mask = torch.arange(len(ids)) >= prompt_length
                write_sample(folder, i, ids, mask, narrow, logprobs=logprobs, metadata=notes)


def _committed(name: str) -> list[tuple[Tensor, int]]:
    """Greedy sequences of `tokens/`: all held-out ones, or `REPAIR_TOKENS` of training, each with its prompt length."""
    stored = np.load(HERE / "tokens" / f"{name}.npz")
    lengths = stored["length"].astype(int).tolist()
    token_ids = torch.from_numpy(stored["token_ids"].astype(np.int64)).split(lengths)
    sequences = list(zip(token_ids, stored["prompt_length"].tolist(), strict=True))
    if name == "held_out":
        return sequences[: len(sequences) - len(list((HERE / "dumps" / "sampled" / "hidden_states").iterdir()))]
    random.Random(0).shuffle(sequences)
    reached = np.cumsum([len(ids) for ids, _ in sequences])
    return sequences[: int(np.searchsorted(reached, REPAIR_TOKENS)) + 1]


def load_library_draft() -> Eagle3DraftModel:
    """The committed draft in the library's own class, float32, its embedding and teacher head the target's.

    The embedding is written back beside the draft first: where a checkpoint lacks it, transformers fills it
    with zeros, and speculators 0.9.0 then no longer sees that it was missing.
    """
    folder = WORK / "loaded"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "draft", folder)
    embedding = load_file(WORK / "verifier" / "model.safetensors")["model.embed_tokens.weight"]
    tensors = load_file(folder / "model.safetensors")
    _save({**tensors, "embed_tokens.weight": embedding}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(WORK / "verifier")
    (folder / "config.json").write_text(json.dumps(config))
    loaded = Eagle3SpeculatorConfig.from_pretrained(folder)
    loaded.transformer_layer_config._attn_implementation = "eager"
    return Eagle3DraftModel.from_pretrained(folder, config=loaded, dtype=torch.float32)


def dumped_sequences(folder: Path, boundaries: tuple[int, ...]) -> list[train_draft.Sequence]:
    """The samples of a dump in speculators' current layout, with the trained slots and the teacher selected."""
    from datasets import load_from_disk

    columns = [boundaries.index(k) for k in train_draft.SLOTS]
    sequences = []
    for i, row in enumerate(load_from_disk(folder)):
        tensors = load_file(folder / "hidden_states" / f"hs_{i}.safetensors")
        states = tensors["hidden_states"]
        mask = torch.tensor(row["loss_mask"]).bool()
        teacher = states[:, boundaries.index(train_draft.TEACHER)]
        sequences.append(train_draft.Sequence(tensors["token_ids"], mask, states[:, columns].flatten(1), teacher))
    return sequences


def _loops(answer: Tensor, period_limit: int = 40, repeats: int = 3) -> bool:
    """Whether an answer ends in the same run of tokens at least `repeats` times over."""
    ids = [t for t in answer.tolist() if t != END]
    return any(
        len(ids) >= repeats * period and ids[-period:] * repeats == ids[-repeats * period :]
        for period in range(1, period_limit + 1)
    )


def _rates(totals: dict[str, list[int]], name: str) -> list[float]:
    return [round(s / t, 4) for s, t in zip(totals[f"{name}_sum"], totals[f"{name}_total"], strict=True)]


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    """Write to a neighbour first, so that an interrupted run leaves no half file."""
    part = file.with_suffix(".part")
    save_file(tensors, part, metadata={"format": "pt"})
    part.rename(file)


STAGES = {
    "answers": (answer_training_prompts, WORK / "answers" / "done"),
    "verifier": (save_verifier, WORK / "verifier" / "model.safetensors"),
    "draft": (train, HERE / "draft" / "config.json"),
    "dumps": (write_dumps, HERE / "dumps" / "listed" / "data_1.pt"),
    "claim": (write_claim, HERE / "training.json"),
    "tokens": (write_tokens, HERE / "tokens" / "held_out.npz"),
    "repair": (capture_for_repair, WORK / "repair" / "done"),
}


def main() -> None:
    """Run the stages that are missing, up to the one asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=STAGES, default=list(STAGES)[-1])
    wanted = parser.parse_args().stage
    for name, (stage, result) in STAGES.items():
        if result.exists():
            print(f"{name}: done ({result.relative_to(HERE)} exists)")
        else:
            print(f"{name}: {stage.__doc__.splitlines()[0]}", flush=True)
            stage()
            if not result.exists():
                result.touch()
        if name == wanted:
            return


if __name__ == "__main__":
    main()
