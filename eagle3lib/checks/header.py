"""Stage `checkpoint`, from the header alone: tensors, flags and sizes that contradict each other."""

from __future__ import annotations

from eagle3lib.dialects import Checkpoint
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding, Severity
from eagle3lib.folders import SINGLE
from eagle3lib.infer import infer_config
from eagle3lib.ledger import FlagEntry, TensorEntry
from eagle3lib.quantised import CACHE_SCALES

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: Words of config.json for the file's types.
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}


def check_header(
    checkpoint: Checkpoint, tensors: tuple[TensorEntry, ...], flags: tuple[FlagEntry, ...]
) -> list[Finding]:
    """All of the below that have something to say, or one `ok`."""
    found = [
        *check_missing(tensors),
        *check_unused(tensors),
        *check_sizes(checkpoint),
        *check_input_norm(checkpoint),
        *check_tie(checkpoint),
        *check_dtype(checkpoint),
        *check_leftovers(checkpoint),
        *check_unknown_flags(flags),
    ]
    if not any(f.severity in (FAULT, RISK) for f in found):
        used = sum(entry.status == "used" for entry in tensors)
        title = f"All {used} tensors of the pass are there, and config.json agrees with them"
        found.append(Finding("checkpoint.header", OK, title, "The file is whole and of an EAGLE-3 draft."))
    return found


def check_missing(tensors: tuple[TensorEntry, ...]) -> list[Finding]:
    """Tensors that a pass cannot do without, and those that something stands in for."""
    missing = [entry for entry in tensors if entry.status == "missing"]
    lost = [entry for entry in missing if entry.note.startswith("nothing")]
    found = [
        Finding(
            "checkpoint.tensor_absent",
            NOTE,
            f"The file holds no {entry.name}",
            f"Here {entry.note} stands in for it.",
            evidence={"tensor": entry.name},
        )
        for entry in missing
        if entry not in lost
    ]
    if lost:
        promised = [entry.name for entry in lost if "promises" in entry.note]
        found.append(
            Finding(
                "checkpoint.tensor_missing",
                FAULT,
                f"{len(lost)} tensors that every pass needs are missing",
                "An engine that warns of unknown names only leaves ones or random memory in their place.",
                "Copy the missing shard or export the draft again."
                + (" The index promises them, so the export lost them." if promised else ""),
                {"tensors": [entry.name for entry in lost], "promised by the index": promised},
            )
        )
    return found


def check_unused(tensors: tuple[TensorEntry, ...]) -> list[Finding]:
    """Tensors that no pass reads and that are none of the known harmless ones."""
    unused = [entry for entry in tensors if entry.status == "unused" and entry.note.startswith("no part")]
    if not unused:
        return []
    return [
        Finding(
            "checkpoint.tensor_unused",
            RISK,
            f"{len(unused)} tensors are no part of an EAGLE-3 pass",
            "An engine drops names that it does not know without a word; what they were trained to do is lost.",
            "Look the names up in the trainer; an unfamiliar norm or bias means another pass than this one.",
            {"tensors": [entry.stored for entry in unused]},
        )
    ]


def check_sizes(checkpoint: Checkpoint) -> list[Finding]:
    """config.json against the shapes; the shapes win."""
    try:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        mismatches = infer_config(checkpoint.path, checkpoint.config, shapes).mismatches
    except InputError as error:
        return [Finding("checkpoint.unreadable", FAULT, "The pass cannot be made of this file", str(error))]
    flags = ("norm_before_fc", "fc_norm", "use_aux_norm")  # said by check_input_norm, with what follows from it
    mismatches = [m for m in mismatches if not any(f" {flag} " in m for flag in flags)]
    if not mismatches:
        return []
    return [
        Finding(
            "checkpoint.config_contradicts",
            RISK,
            f"config.json contradicts the tensors in {len(mismatches)} places",
            "The tensors are right, since they were trained; an engine that believes config.json stops or cuts them.",
            "Correct config.json: " + "; ".join(mismatches) + ".",
            {"contradictions": list(mismatches)},
        )
    ]


def check_input_norm(checkpoint: Checkpoint) -> list[Finding]:
    """The norms before fc and the flags that switch them on come together or not at all."""
    config, tensors = checkpoint.config, checkpoint.tensors
    has = {"norm_before_fc": "input_norm.weight" in tensors, "fc_norm": "fc_norm.0.weight" in tensors}
    flagged = {
        "norm_before_fc": bool(config.get("norm_before_fc")),
        "fc_norm": bool(config.get("fc_norm") or config.get("use_aux_norm")),
    }
    found = []
    for flag in has:
        if has[flag] and not flagged[flag]:
            found.append(
                Finding(
                    "checkpoint.norm_flag_absent",
                    FAULT,
                    f"The norm before fc is in the file, and config.json does not say {flag}: true",
                    "Engines build the norm from the flag and drop its weights without a word; fc then sees states of"
                    " another scale than in training.",
                    f"Add {flag}: true to config.json.",
                    {"flag": flag},
                )
            )
        if flagged[flag] and not has[flag]:
            found.append(
                Finding(
                    "checkpoint.norm_tensor_absent",
                    FAULT,
                    f"config.json says {flag}: true, and the file has no such norm",
                    "Engines fill the norm with ones and apply it, which training did not.",
                    f"Set {flag}: false, or export the draft again with the norm.",
                    {"flag": flag},
                )
            )
    if all(has.values()):
        found.append(
            Finding(
                "checkpoint.norm_both",
                RISK,
                "The file has both norms before fc, over the concat and over each state",
                "The trainers know one or the other; engines apply both, or the first they look for.",
                "Look in the trainer which one was on, and drop the other.",
            )
        )
    return found


def check_tie(checkpoint: Checkpoint) -> list[Finding]:
    """A head of its own, and a flag that says the embedding is the head."""
    if not checkpoint.config.get("tie_word_embeddings") or "lm_head.weight" not in checkpoint.tensors:
        return []
    return [
        Finding(
            "checkpoint.tied_with_own_head",
            FAULT,
            "config.json says tie_word_embeddings: true, and the file has a head of its own",
            "SGLang then takes the embedding for the head, and Transformers reshapes it; the trained head is lost.",
            "Set tie_word_embeddings: false.",
        )
    ]


def check_dtype(checkpoint: Checkpoint) -> list[Finding]:
    """The type in which most weights are stored against the one config.json names."""
    said = str(checkpoint.config.get("torch_dtype") or checkpoint.config.get("dtype") or "").removeprefix("torch.")
    if (wanted := DTYPES.get(said)) is None:
        return []
    floats = {n: i.dtype for n, i in checkpoint.tensors.items() if i.dtype in DTYPES.values()}
    other = [name for name, dtype in floats.items() if dtype != wanted]
    if not other:
        return []
    return [
        Finding(
            "checkpoint.dtype",
            NOTE,
            f"{len(other)} tensors are {', '.join(sorted({floats[n] for n in other}))}, and config.json says {said}",
            "An engine casts them to the type it serves in; a draft saved in float32 is twice the size for nothing.",
            evidence={"tensors": other[:8], "says": said},
        )
    ]


def check_leftovers(checkpoint: Checkpoint) -> list[Finding]:
    """Scales of a key-value cache, and a second copy of the weights that another reader would take."""
    found = []
    scales = [name for name in checkpoint.tensors if name.rsplit(".", 1)[-1] in CACHE_SCALES]
    if scales:
        found.append(
            Finding(
                "checkpoint.cache_scales",
                NOTE,
                f"{len(scales)} scales of a key-value cache are in the file",
                "They belong to a server's cache, not to a weight, and are left out here.",
                evidence={"tensors": scales[:8]},
            )
        )
    if checkpoint.path.is_dir():
        copies = [name for name in SINGLE if (checkpoint.path / name).is_file()]
        if len(copies) > 1:
            used = checkpoint.files[0].name
            found.append(
                Finding(
                    "checkpoint.two_copies",
                    RISK,
                    f"The folder holds {' and '.join(copies)}",
                    f"This workbook and most engines read {used}; the official EAGLE code reads pytorch_model.bin"
                    " first. If one is older, each serves another draft.",
                    "Remove the older file.",
                    {"files": copies, "read": used},
                )
            )
    return found


def check_unknown_flags(flags: tuple[FlagEntry, ...]) -> list[Finding]:
    """Entries of config.json that no system read so far has."""
    unknown = [entry.path for entry in flags if entry.status == "unknown"]
    if not unknown:
        return []
    return [
        Finding(
            "checkpoint.flags_unknown",
            NOTE,
            f"{len(unknown)} entries of config.json are of no system read so far",
            "If one of them changes the trainer's pass, this workbook and the engines miss it.",
            evidence={"flags": unknown},
        )
    ]
