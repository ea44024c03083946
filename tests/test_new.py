"""`python -m eagle3lib new`: a case from what there is, that loads, says what it guessed and what is missing."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import forms
import nbformat
import pytest
import torch
import toys
import written
from bundled import CASE, ROOT
from pages import parsed
from typer.testing import CliRunner

from eagle3lib.__main__ import app
from eagle3lib.case import Case, load_case
from eagle3lib.dialects import read_checkpoint
from eagle3lib.investigation import Investigation
from eagle3lib.new_case import relative
from eagle3lib.own_layout import write_sample
from eagle3lib.run import NOTEBOOKS

BUNDLED = load_case(CASE)
TARGET = CASE.parent / "target" / "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Of SGLang.
LOG = "".join(
    f"[2026-08-01 10:02:0{i}] Decode batch. #running-req: 1, #token: 512, token usage: 0.00, accept len: 1.5{i}, accept"
    f" rate: 0.3{i}, cuda graph: True, gen throughput (token/s): 112.31, #queue-req: 0\n"
    for i in range(9)
)


def new(*arguments: object):
    return CliRunner().invoke(app, ["new", *map(str, arguments)])


def made(folder: Path, *arguments: object) -> tuple[Case, str, str]:
    """The case that is written to `folder`, its text, and what was printed."""
    found = new(*arguments, "--out", folder / "case.toml")
    assert found.exit_code == 0, found.output
    return load_case(folder / "case.toml"), (folder / "case.toml").read_text(), found.output


def refused(*arguments: object) -> str:
    """The one sentence, or two, with which a mistake is answered."""
    found = new(*arguments)
    assert found.exit_code == 2, found.output
    assert found.output.count("\n") == 1
    return found.output


def unfolded(text: str) -> str:
    """Comments that were folded, on one line."""
    return re.sub(r"\n#   ", " ", text)


def dump_lines(text: str) -> list[str]:
    """The lines of the first `[[dumps]]` of a case, comment signs taken off names and values."""
    begin = re.search(r"^(# )?\[\[dumps\]\]$", text, flags=re.MULTILINE).start()
    block = text[begin:].split("\n\n")[0]
    return [line for line in re.findall(r"^(?:# )?(\[\[.*|\w+ = .*)$", block, flags=re.MULTILINE)]


def filled(lines: list[str], **values: object) -> dict:
    """Those lines as a table, some with other values, those given None left out."""
    kept = [line for line in lines if line.split(" = ")[0] not in values]
    (table,) = tomllib.loads("\n".join(kept))["dumps"]
    return table | {name: value for name, value in values.items() if value is not None}


def draft_of(folder: Path, form: str = "speculators") -> Path:
    forms.WRITERS[form](folder / "draft", toys.draft_tensors())
    return folder / "draft"


@pytest.mark.parametrize("form", forms.WRITERS)
def test_a_draft_alone_is_a_case_in_every_form(form, tmp_path):
    case, text, printed = made(tmp_path, "--draft", draft_of(tmp_path, form))
    assert 'path = "draft"' in text
    assert case.draft.path == tmp_path / "draft"
    assert case.dumps == () and case.target is None and case.served is None
    assert read_checkpoint(case.draft.path).dialect in unfolded(text)
    assert f"3 slots of {toys.HIDDEN}" in unfolded(text)
    guessed = Investigation(case).trainer
    assert f'# trainer = "{guessed.name}"' in text
    assert printed.endswith("case.toml --only 01\n")
    for option in ("--target PATH", "--dump PATH", "--engine NAME", "training.full_acc"):
        assert option in printed
    lacks = "embed_tokens.weight" not in read_checkpoint(case.draft.path).tensors
    assert ("takes its embedding from it" in printed) == lacks


def test_every_line_that_is_left_out_is_a_field(tmp_path):
    """Uncommented, it parses, and its name is one that the case knows."""
    _, text, _ = made(tmp_path, "--draft", draft_of(tmp_path))
    lines = re.findall(r"^(?:# )?(\[.*|\w+ = .*)$", text, flags=re.MULTILINE)
    data = tomllib.loads("\n".join(lines))
    assert {"draft", "target", "training", "dumps", "served", "drafts"} <= set(data)
    for name, table in data.items():
        fields = Case.model_fields[name]
        model = next((m for m in (fields.annotation, *getattr(fields.annotation, "__args__", ()))
                      if hasattr(m, "model_fields")), None)  # fmt: skip
        for row in table if isinstance(table, list) else [table]:
            assert model is None or set(row) <= set(model.model_fields), name


@pytest.mark.parametrize("layout", written.WRITERS)
def test_dumps_of_every_layout_are_used_or_say_what_to_fill_in(layout, tmp_path):
    truth = written.WRITERS[layout](tmp_path / "dump", written.samples())
    toys.write_target(tmp_path / "target")
    draft = draft_of(tmp_path)
    case, text, printed = made(tmp_path, "--draft", draft, "--target", tmp_path / "target", "--dump", tmp_path / "dump")
    lines = dump_lines(text)
    masked = layout not in ("vllm", "tensorrt_llm")
    told = {line.split(" = ")[0] for line in lines}
    assert ("prompt_length" in told) == (not masked)
    values = {} if masked else {"prompt_length": written.PROMPT, "turn_begins": None, "turn_ends": None}
    table = filled(lines, **values)
    if case.dumps:
        (section,) = case.dumps
        assert Investigation(case).stored_boundaries(section) == truth
    else:
        assert "left out until" in printed
        assert "uncomment them" in text
    stated = tuple(table["boundaries"])
    assert stated == truth or not stated
    table["boundaries"] = list(truth)
    path = tmp_path / "filled.toml"
    body = "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
    path.write_text(f'[draft]\npath = "draft"\n[target]\npath = "target"\n[[dumps]]\n{body}\n')
    inv = Investigation(load_case(path))
    assert len(list(inv.open(inv.case.dumps[0]))) == 3


def test_as_many_states_as_boundaries_are_supposed_to_be_every_one(tmp_path):
    """Of a draft whose config.json holds no ids."""
    toys.write_target(tmp_path / "target")
    every = tuple(range(toys.N_LAYERS + 1))
    toys.write_current_dump(tmp_path / "dump", [toys.make_sample()], every)
    given = ["--draft", draft_of(tmp_path, "eagle"), "--target", tmp_path / "target", "--dump", tmp_path / "dump"]
    _, text, _ = made(tmp_path, *given)
    assert filled(dump_lines(text))["boundaries"] == list(every)
    assert "Supposed by their number" in unfolded(text)


def test_axes_that_sizes_leave_open_are_asked_for(tmp_path):
    """As many states as tokens."""
    (tmp_path / "dump").mkdir()
    data = {"input_ids": torch.arange(4), "hidden_states": torch.zeros(4, 4, toys.HIDDEN)}
    torch.save(data, tmp_path / "dump" / "a.pt")
    _, text, printed = made(tmp_path, "--draft", draft_of(tmp_path), "--dump", tmp_path / "dump")
    assert '# axes = ["tokens", "states", "hidden"]' in text
    assert f"[4, 4, {toys.HIDDEN}]" in unfolded(text)
    assert "left out until" in printed


def test_the_bundled_dumps_are_supposed_as_they_are(tmp_path):
    """By the layer ids of both sides, by what the target proves, and from nothing that the case states."""
    _, text, printed = made(
        tmp_path, "--draft", BUNDLED.draft.path, "--target", TARGET, "--dump", BUNDLED.dumps[0].path, "--engine",
        "sglang", "--engine-version", "0.5.23", "--server-config", BUNDLED.served.config, "--training-record",
        BUNDLED.training.record,
    )  # fmt: skip
    table = filled(dump_lines(text))
    assert table["boundaries"] == list(BUNDLED.dumps[0].boundaries)
    assert "state 1 of 5 is B(0), state 5 of 5 is B(30)" in unfolded(text)
    assert "# boundaries = [3, 16, 28]" in text.split("[served]")[1]
    assert "engine's version" not in printed and "--training-record" not in printed


def test_a_layout_s_rule_that_the_states_refute_is_not_taken(tmp_path):
    """The dump held [embedding, 2, 3, n] where the ids say [2, 3, 5, n]."""
    draft = toys.write_draft(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[2, 3, 4])
    target = toys.write_target(tmp_path / "target")
    inv = Investigation(load_case(made(tmp_path, "--draft", draft, "--target", target)[0].path))
    sample = toys.make_sample()
    states = sample.states | {0: inv.target.embed(sample.token_ids)}
    toys.write_current_dump(tmp_path / "dump", [replace(sample, states=states)], (0, 2, 3, 5))
    case, text, _ = made(tmp_path, "--draft", draft, "--target", target, "--dump", tmp_path / "dump", "--force")
    assert case.dumps == ()
    assert "state 1 of 4 is B(0). guessed" in unfolded(text) and "which this contradicts" in unfolded(text)


def test_a_last_state_that_is_normed_is_left_to_notebook_02(tmp_path):
    """The layout's rule says B(n) and the states say its norm: the dump is used, and the note says which it is."""
    inv = Investigation(BUNDLED)
    sample = inv.samples([0, 3, 16, 30])[0]
    states = {**{b: sample.states[b] for b in (0, 3, 16)}, 30: inv.target.final_norm(sample.states[30])}
    toys.write_current_dump(tmp_path / "dump", [replace(sample, states=states)], (0, 3, 16, 30))
    case, text, _ = made(tmp_path, "--draft", BUNDLED.draft.path, "--target", TARGET, "--dump", tmp_path / "dump")
    assert [section.name for section in case.dumps] == ["dump"]
    assert "state 4 of 4 is final_normed" in unfolded(text)


def test_turns_are_supposed_from_the_words_of_a_chat(tmp_path):
    """vLLM's files hold no loss mask; SmolLM2's template does mark the turns."""
    inv = Investigation(BUNDLED)
    sample = inv.samples([0, 3, 16])[0]
    stored = {b: state for b, state in sample.states.items()}
    (tmp_path / "dump").mkdir()
    from safetensors.torch import save_file

    tensors = {"hidden_states": torch.stack(list(stored.values()), 1), "token_ids": sample.token_ids}
    save_file(tensors, tmp_path / "dump" / "cmpl-0.safetensors")
    _, text, _ = made(tmp_path, "--draft", BUNDLED.draft.path, "--target", TARGET, "--dump", tmp_path / "dump")
    table = filled(dump_lines(text), prompt_length=None)
    assert "".join(map(inv.target.text, table["turn_begins"])) == "<|im_start|>assistant\n"
    assert table["boundaries"] == [0, 3, 16]
    path = tmp_path / "filled.toml"
    body = "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items() if name != "path")
    path.write_text(f'[draft]\npath = "{BUNDLED.draft.path}"\n[[dumps]]\npath = "dump"\n{body}\n')
    (read,) = Investigation(load_case(path)).open(load_case(path).dumps[0])
    assert torch.equal(read.loss_mask, sample.loss_mask)


@pytest.mark.parametrize("layout", written.WRITERS)
def test_a_dump_given_as_the_draft_is_named(layout, tmp_path):
    written.WRITERS[layout](tmp_path / "dump", written.samples())
    assert "is a dump of hidden states" in refused("--draft", tmp_path / "dump", "--out", tmp_path / "case.toml")
    assert not (tmp_path / "case.toml").exists()


@pytest.mark.parametrize("form", forms.WRITERS)
def test_a_draft_given_as_something_else_is_named(form, tmp_path):
    draft = draft_of(tmp_path, form)
    out = ["--out", tmp_path / "case.toml"]
    assert "is a draft and no dump" in refused("--draft", draft, "--dump", draft, *out)
    assert "is a draft and no target" in refused("--draft", draft, "--target", draft, *out)


def test_mistakes_are_answered_in_a_sentence(tmp_path):
    draft, out = draft_of(tmp_path), ["--out", tmp_path / "case.toml"]
    written.own(tmp_path / "dump", written.samples())
    target = toys.write_target(tmp_path / "target")
    gone = tmp_path / "gone"
    for arguments, said in (
        (["--draft", gone], "found nothing"),
        (["--draft", draft, "--dump", gone], "found nothing"),
        (["--draft", draft, "--target", gone], "found nothing"),
        (["--draft", target], "none of them a draft's"),
        (["--draft", draft, "--target", tmp_path / "dump"], "is a dump of hidden states"),
        (["--draft", draft, "--dump", target], "No known dump layout fits"),
        (["--draft", draft, *["--dump", tmp_path / "dump"] * 2], "was given twice"),
        (["--draft", draft, "--engine-version", "0.5.23"], "Expected --engine"),
        (["--draft", draft, "--engine", "sglan"], "did you mean 'sglang'"),
        (["--draft", draft, "--engine", "sglang", "--server-config", gone], "(--server-config), found nothing"),
        (["--draft", draft, "--training-record", tmp_path], "(--training-record), found a folder"),
    ):
        assert said in refused(*arguments, *out), arguments
    assert not (tmp_path / "case.toml").exists()


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    draft = draft_of(tmp_path)
    _, text, _ = made(tmp_path, "--draft", draft)
    (tmp_path / "case.toml").write_text("mine")
    assert "exists already" in refused("--draft", draft, "--out", tmp_path / "case.toml")
    assert (tmp_path / "case.toml").read_text() == "mine"
    assert made(tmp_path, "--draft", draft, "--force")[1] == text


def test_text_of_files_stays_in_its_comment(tmp_path):
    """An architecture's name with a line break in it begins no section."""
    draft = draft_of(tmp_path, "specforge")
    config = json.loads((draft / "config.json").read_text())
    config["architectures"] = ['LlamaForCausalLMEagle3\n[target]\npath = "/etc"\x00\u2028x']
    (draft / "config.json").write_text(json.dumps(config))
    case, text, _ = made(tmp_path, "--draft", draft)
    assert case.target is None
    assert "[target]" not in [line.strip() for line in text.splitlines()]


def test_paths_are_relative_to_where_the_case_really_lies(tmp_path):
    """Written through a link to another depth; inside the folder, beside it, and with nothing shared."""
    draft = draft_of(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    case, text, _ = made(tmp_path / "link", "--draft", draft)
    assert 'path = "../../draft"' in text and case.draft.path == draft
    inner = draft_of(tmp_path / "link" / "inside")
    case, text, _ = made(tmp_path / "link", "--draft", inner, "--force")
    assert 'path = "inside/draft"' in text
    assert relative(Path("/srv/dump"), Path("/home/me/case")) == "/srv/dump"


def test_two_dumps_of_one_name_get_names_of_their_own(tmp_path):
    for parent in ("one", "two"):
        (tmp_path / parent).mkdir()
        written.own(tmp_path / parent / "dump", written.samples())
    dumps = ["--dump", tmp_path / "one" / "dump", "--dump", tmp_path / "two" / "dump"]
    case, _, _ = made(tmp_path, "--draft", draft_of(tmp_path), *dumps)
    assert [(d.name, d.path.parent.name) for d in case.dumps] == [("dump", "one"), ("dump-2", "two")]


def test_what_is_missing_is_said_and_what_is_there_is_not(tmp_path):
    """A dump of every boundary that is used; one without the last state; one without a slot's."""
    draft, target = draft_of(tmp_path), toys.write_target(tmp_path / "target")
    given = ["--draft", draft, "--target", target, "--force", "--dump"]
    asked = {
        "last": "the state after the last block in any dump (a dump with B(5) or final_normed)",
        "slots": "B(0), B(2), B(3) in one greedy dump",
        "every": "every boundary, B(0) to B(5), in one dump",
        "sampled": "a dump of sampled responses",
    }
    for held, temperature, said in (
        ((0, 1, 2, 3, 4, 5), 0.0, {"sampled"}),
        ((0, 2, 3, 5), 0.8, {"slots", "every"}),
        ((0, 2, 3), 0.0, {"last", "every", "sampled"}),
        ((0, 2, 5), 0.0, {"slots", "every", "sampled"}),
    ):
        folder = tmp_path / f"dump{len(held)}{held[-1]}"
        sample = toys.make_sample()
        states = {b: sample.states[b] for b in held}
        write_sample(folder, 0, sample.token_ids, sample.loss_mask, states, metadata={"temperature": str(temperature)})
        _, _, printed = made(tmp_path, *given, folder)
        assert {name for name, text in asked.items() if text in printed} == said, held


def test_the_next_command_is_there(tmp_path, monkeypatch):
    """As it is printed, from where it is printed; its options are those of a run."""
    monkeypatch.chdir(tmp_path)
    draft = draft_of(tmp_path)
    script, *options = shlex.split(made(tmp_path, "--draft", draft)[2].splitlines()[-1].removeprefix("Next"))
    assert Path(script).resolve() == ROOT / "run_all.sh"
    assert parsed(["./run_all.sh", *options]) == "run"
    assert Path(options[options.index("--case") + 1]).resolve() == tmp_path / "case.toml"


def test_logs_are_read_by_the_next_command_and_are_not_missing(tmp_path):
    (tmp_path / "server.log").write_text(LOG)
    given = ["--draft", draft_of(tmp_path, "specforge"), "--engine", "sglang"]
    _, _, printed = made(tmp_path, *given)
    assert printed.endswith("--only 01\n") and "the acceptance length that the engine printed" in printed
    _, _, printed = made(tmp_path, *given, "--server-log", tmp_path / "server.log", "--force")
    assert printed.endswith("--only 01,05\n") and "the acceptance length that the engine printed" not in printed


def test_a_log_that_tells_nothing_is_refused_and_one_that_shows_the_flags_asks_for_none(tmp_path):
    log = tmp_path / "server.log"
    given = ["--draft", draft_of(tmp_path, "specforge"), "--engine", "sglang", "--server-log", log]
    log.write_text("INFO: all is well\n" * 9)
    assert "tells nothing of speculation" in refused(*given, "--out", tmp_path / "case.toml")
    log.write_text(LOG)
    assert "--server-flags" in made(tmp_path, *given)[2]
    log.write_text("server_args=ServerArgs(model_path='t', speculative_num_steps=3, speculative_eagle_topk=1)\n" + LOG)
    assert "--server-flags" not in made(tmp_path, *given, "--force")[2]


def test_notebook_05_answers_for_logs_and_a_draft_without_an_embedding(tmp_path):
    (tmp_path / "server.log").write_text(LOG)
    given = ["--draft", draft_of(tmp_path, "specforge"), "--engine", "sglang", "--server-log", tmp_path / "server.log"]
    record = run_page("05_acceptance_length", made(tmp_path, *given)[0].path, tmp_path / "out")
    assert "served.log_read" in [finding["code"] for finding in record["findings"]]
    assert record["answer"].startswith("Tokens a round as the server says, bonus included: 1.54 in server.log;")


def run_page(name: str, case: Path, out: Path) -> dict:
    """The record of a notebook, run in this process."""
    scope: dict = {}
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, name, "exec"), scope)  # noqa: S102 the notebook is ours
            if "parameters" in cell.metadata.get("tags", []):
                scope |= {"case": str(case), "out": str(out), "device": "cpu"}
    return json.loads((out / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("form", ["specforge", "llama_cpp", "speculators"])
def test_notebook_01_answers_for_a_draft_alone(form, tmp_path):
    case, _, _ = made(tmp_path, "--draft", draft_of(tmp_path, form))
    record = run_page("01_weight_loading", case.path, tmp_path / "out")
    assert record["answer"]
    assert [item["needs"] for item in record["unanswered"]] == ["a dump, for the tokens of its responses"]


def test_notebook_02_answers_for_a_draft_without_an_embedding_and_a_dump(tmp_path):
    """The pass needs a target then, and so the next command names no later notebook."""
    written.own(tmp_path / "dump", written.samples())
    case, _, printed = made(tmp_path, "--draft", draft_of(tmp_path, "specforge"), "--dump", tmp_path / "dump")
    assert printed.endswith("--only 01,02\n")
    record = run_page("02_layer_norms", case.path, tmp_path / "out")
    assert "Do the states belong to the tokens?" in [item["question"] for item in record["unanswered"]]


@pytest.mark.slow
def test_notebooks_02_to_05_answer_for_a_draft_and_a_dump(tmp_path):
    """Each says which questions it could not answer, and what would."""
    samples = [toys.make_sample(i, boundaries=range(toys.N_LAYERS + 1)) for i in range(4)]
    written.own(tmp_path / "dump", [replace(s, states=s.states | {written.FINAL_NORMED: s.states[5]}) for s in samples])
    case, _, printed = made(tmp_path, "--draft", draft_of(tmp_path), "--dump", tmp_path / "dump")
    assert "--only" not in printed and len(case.dumps) == 1
    open_questions = {}
    for name in ("02_layer_norms", "03_manual_forward", "04_concat_order", "05_acceptance_length"):
        record = run_page(name, case.path, tmp_path / "out")
        assert record["answer"], name
        open_questions[name[:2]] = [item["question"] for item in record["unanswered"]]
        assert all(item["needs"] for item in record["unanswered"])
    assert "Do the states belong to the tokens?" in open_questions["02"]
    assert "Does the trainer's number come back?" in open_questions["03"]
    assert "What does the served wiring cost?" in open_questions["04"]
    assert open_questions["05"]


def test_the_command_needs_no_jupyter():
    """It answers within seconds; the runner's imports take longer."""
    import subprocess
    import sys

    code = "import sys; sys.argv = ['eagle3lib', 'new']; import eagle3lib.__main__; print('papermill' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
