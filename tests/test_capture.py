"""Captured states against transformers' own, the model's own logits, and a request carried out, resumed, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from bundled import CASE, living_target
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import CAPTURED, COMMON, N_LAYERS, REFUSED, VOCAB, tiny_model
from torch import nn

from eagle3lib import open_dump
from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.capture import (
    Response,
    capture,
    check_own_logits,
    encode,
    load_whole_target,
    own_logits,
    prefill,
    recognise,
    respond,
)
from eagle3lib.capture import states as capture_states
from eagle3lib.errors import InputError
from eagle3lib.findings import Severity
from eagle3lib.results import PROJECT_ROOT

IDS = torch.tensor([5, 9, 33, 8, 60, 41, 7, 12])
EVERY = (*range(N_LAYERS + 1), FINAL_NORMED)
PROMPTS = [[5, 9, 33], [8, 60, 41, 7], [12, 13]]


@pytest.fixture(scope="module")
def target():
    return recognise(tiny_model("LlamaConfig", COMMON), name="tiny")


@pytest.mark.parametrize("kind", CAPTURED)
@torch.inference_mode()
def test_states_are_those_of_transformers_to_the_bit(kind):
    whole = recognise(tiny_model(kind, CAPTURED[kind]))
    output = whole.model(input_ids=IDS[None], output_hidden_states=True)
    states, logprobs = prefill(whole, IDS, EVERY)
    for k in range(N_LAYERS):
        assert torch.equal(states[k], output.hidden_states[k][0])
    assert torch.equal(whole.final_norm(states[N_LAYERS]), output.hidden_states[N_LAYERS][0])
    assert torch.equal(states[FINAL_NORMED], output.hidden_states[N_LAYERS][0])
    assert not torch.equal(states[N_LAYERS], states[FINAL_NORMED])  # B(n) is before the norm
    theirs = output.logits[0].log_softmax(-1)[:-1].gather(1, IDS[1:, None])[:, 0]
    torch.testing.assert_close(logprobs[1:], theirs, rtol=0, atol=1e-6)
    assert logprobs[0].isnan()


@pytest.mark.parametrize("kind", CAPTURED)
@torch.inference_mode()
def test_the_stored_last_state_gives_the_logits_back(kind, tmp_path):
    """In float32 to 1e-4; in bfloat16 the mean log-probability moves by less than 0.01."""
    whole = recognise(tiny_model(kind, CAPTURED[kind]))
    theirs = whole.model(input_ids=IDS[None]).logits[0]
    (file,) = capture(whole, [IDS.tolist()], tmp_path / "float32", [N_LAYERS], stored="float32", progress=False)
    stored = load_file(file)[f"boundary.{N_LAYERS}"]
    assert stored.dtype == torch.float32
    torch.testing.assert_close(whole.logits(whole.final_norm(stored)), theirs, rtol=0, atol=1e-4)
    assert own_logits(whole, [file]).logit_error <= 1e-4


def test_bfloat16_moves_log_probabilities_little(target, tmp_path):
    files = capture(target, PROMPTS, tmp_path, [0, N_LAYERS], new_tokens=40, progress=False)
    assert load_file(files[0])[f"boundary.{N_LAYERS}"].dtype == torch.bfloat16
    found = own_logits(target, files)
    assert 0 < found.logprob_error < 0.01
    assert check_own_logits(found, rounded=True).severity == Severity.OK
    assert found.tokens == sum(len(load_file(file)["token_ids"]) - 1 for file in files)


def test_a_wrong_last_state_does_not_give_the_logits_back(target, tmp_path):
    """The proof can fail: B(n - 1) stored under the name of B(n)."""
    (file,) = capture(target, PROMPTS[:1], tmp_path, [N_LAYERS - 1, N_LAYERS], new_tokens=20, progress=False)
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    file.unlink()
    save_file(tensors | {f"boundary.{N_LAYERS}": tensors[f"boundary.{N_LAYERS - 1}"].clone()}, file)
    found = own_logits(target, [file])
    assert found.logit_error > 0.1
    assert found.logprob_error > 0.01
    assert check_own_logits(found, rounded=True).severity == Severity.FAULT


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_such_boundaries_is_refused_in_a_sentence(name):
    kind, settings, said = REFUSED[name]
    with pytest.raises(InputError, match="Expected a decoder of blocks") as error:
        recognise(tiny_model(kind, settings))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_blocks_that_run_twice_are_refused():
    def share(model) -> None:
        model.model.layers[2] = model.model.layers[1]

    with pytest.raises(InputError, match="do not each run once and in order"):
        recognise(tiny_model("LlamaConfig", COMMON, share))


def test_a_norm_that_reads_something_else_is_refused():
    class Halved(nn.Module):
        def __init__(self, norm) -> None:
            super().__init__()
            self.weight = norm.weight
            self.variance_epsilon = norm.variance_epsilon

        def forward(self, hidden_states):
            return hidden_states * self.weight

    def edit(model) -> None:
        model.model.norm = Halved(model.model.norm)
        model.model.norm.register_forward_pre_hook(lambda _m, args: (args[0] / 2,), prepend=True)

    with pytest.raises(InputError, match="reads something else than the last block's output"):
        recognise(tiny_model("LlamaConfig", COMMON, edit))


def test_an_encoder_decoder_is_refused():
    import transformers

    small = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**small, decoder_start_token_id=0))
    with pytest.raises(InputError, match="not a decoder with a language-model head"):
        recognise(model)


def test_a_greedy_response_is_the_argmax_whatever_the_checkpoint_recommends(target):
    """A generation_config with penalties and truncation must not shape the text, and must be there afterwards."""
    own = target.model.generation_config
    own.repetition_penalty, own.top_p, own.min_new_tokens = 1.8, 0.5, 30
    try:
        (response,) = respond(target, PROMPTS[:1], 24)
        assert target.model.generation_config is own
    finally:
        own.repetition_penalty, own.top_p, own.min_new_tokens = 1.0, 1.0, None
    with torch.inference_mode():
        choices = target.model(input_ids=response.token_ids[None]).logits[0].argmax(-1)
    assert torch.equal(response.token_ids[1:][response.loss_mask[1:]], choices[:-1][response.loss_mask[1:]])
    assert response.loss_mask.tolist() == [False] * 3 + [True] * (len(response.token_ids) - 3)


def test_sampling_follows_the_whole_distribution_at_its_temperature(target):
    """First tokens of 4000 samples against softmax(logits / temperature): total variation within sampling noise."""
    temperature, n = 3.0, 4000
    drawn = torch.stack([r.token_ids[2] for r in respond(target, [PROMPTS[2]] * n, 1, temperature, seed=3)])
    with torch.inference_mode():
        expected = (target.model(input_ids=torch.tensor([PROMPTS[2]])).logits[0, -1] / temperature).softmax(-1)
    observed = torch.bincount(drawn, minlength=VOCAB) / n
    noise = 0.5 * (2 * expected * (1 - expected) / (torch.pi * n)).sqrt().sum()  # its expectation for a right sampler
    assert 0.5 * (observed - expected).abs().sum() < 1.5 * noise
    assert (observed > 0).sum() > 50  # no top-k of 50


def test_sampling_leaves_the_callers_random_numbers_alone(target):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    respond(target, PROMPTS[:1], 3, 1.0, seed=5)
    assert torch.equal(torch.rand(1), expected)


def test_states_of_a_generation_are_those_of_a_prefill(target):
    """All rows but the last token's, which was never an input."""
    (response,) = respond(target, PROMPTS[:1], 20, boundaries=(0, 2, N_LAYERS))
    states, _ = prefill(target, response.token_ids, (0, 2, N_LAYERS))
    for boundary, state in response.states.items():
        assert len(state) == len(response.token_ids) - 1
        torch.testing.assert_close(state, states[boundary][:-1], rtol=1e-4, atol=1e-4)


def test_logits_are_made_a_block_at_a_time(target, monkeypatch):
    whole, most = prefill(target, IDS, [])[1], []
    monkeypatch.setattr(capture_states, "LOGIT_BLOCK", 2 * VOCAB)
    hook = target.model.lm_head.register_forward_hook(lambda _m, _i, out: most.append(out.numel()))
    blocks = prefill(target, IDS, [])[1]
    hook.remove()
    assert max(most) == 2 * VOCAB
    torch.testing.assert_close(blocks[1:], whole[1:], rtol=0, atol=1e-6)


def test_files_hold_what_was_asked_for_and_say_of_what(target, tmp_path):
    files = capture(target, PROMPTS, tmp_path, EVERY, new_tokens=5, temperature=0.7, progress=False)
    assert [file.name for file in files] == [f"sample_{i:06d}.safetensors" for i in range(3)]
    with safe_open(files[1], framework="pt") as tensors:
        names = {"token_ids", "loss_mask", "token_logprobs", FINAL_NORMED, *(f"boundary.{k}" for k in range(4))}
        assert set(tensors.keys()) == names
        said = tensors.metadata()
    assert (said["format"], said["version"], said["temperature"]) == ("eagle3lib", "1", "0.7")
    assert (said["model"], said["dtype_run"]) == ("tiny", "float32")
    assert said["engine"].startswith("transformers ")
    held = load_file(files[1])
    assert held["token_ids"][:4].tolist() == PROMPTS[1]
    assert held["loss_mask"].tolist() == [False] * 4 + [True] * (len(held["token_ids"]) - 4)
    assert all(len(tensor) == len(held["token_ids"]) for tensor in held.values())


def test_an_interrupted_request_goes_on_and_gives_the_same_files(target, tmp_path):
    asked = {"new_tokens": 12, "temperature": 1.0, "seed": 4, "progress": False}
    whole = capture(target, PROMPTS, tmp_path / "whole", [0, N_LAYERS], **asked)
    files = capture(target, PROMPTS, tmp_path / "parts", [0, N_LAYERS], **asked)
    files[1].unlink()
    before = files[0].stat().st_mtime_ns
    capture(target, PROMPTS, tmp_path / "parts", [0, N_LAYERS], **asked)
    for file, expected in zip(files, whole, strict=True):
        torch.testing.assert_close(load_file(file), load_file(expected), rtol=0, atol=0, equal_nan=True)
    assert files[0].stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"boundaries": [0, 1]}, "boundaries was [0, 3] and now is [0, 1]"),
        ({"temperature": 0.5}, "temperature was 0.0 and now is 0.5"),
        ({"stored": "float32"}, "stored was bfloat16 and now is float32"),
        ({"prompts": PROMPTS[:2]}, "prompts was 3, sha256"),
    ],
)
def test_a_changed_request_in_the_same_folder_is_refused(target, tmp_path, change, said):
    asked = {"prompts": PROMPTS, "boundaries": [0, 3], "new_tokens": 2, "progress": False}
    capture(target, folder=tmp_path, **asked)
    with pytest.raises(InputError) as error:
        capture(target, folder=tmp_path, **(asked | change))
    assert said in str(error.value)


def test_samples_of_unknown_origin_are_not_added_to(target, tmp_path):
    (tmp_path / "sample_000000.safetensors").touch()
    with pytest.raises(InputError, match="no request.json"):
        capture(target, PROMPTS, tmp_path, [0], progress=False)


def test_a_servers_response_is_captured_as_it_is(target, tmp_path):
    mask = torch.tensor([False, False, True, True, False, True, True, True])
    (file,) = capture(target, [Response(IDS, mask)], tmp_path, [N_LAYERS], new_tokens=9, progress=False)
    held = load_file(file)
    assert torch.equal(held["token_ids"], IDS)
    assert torch.equal(held["loss_mask"].bool(), mask)
    with safe_open(file, framework="pt") as tensors:
        assert "temperature" not in tensors.metadata()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"boundaries": [4]}, "B(0) to B(3)"),
        ({"boundaries": [-1]}, "found -1"),
        ({"boundaries": []}, "Name each boundary"),
        ({"boundaries": [1, 1]}, "Name each boundary"),
        ({"stored": "float16"}, "found 'float16'"),
        ({"temperature": -1.0}, "0 or more"),
        ({"prompts": ["Hello"]}, "tiny has no tokenizer; give token ids"),
        ({"prompts": [[]]}, "token ids below 97"),
        ({"prompts": [[97]]}, "token ids below 97"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(target, tmp_path, change, said):
    asked = {"prompts": PROMPTS, "boundaries": [0], "progress": False}
    with pytest.raises(InputError) as error:
        capture(target, folder=tmp_path / "new", **(asked | change))
    assert said in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_path_without_a_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    with pytest.raises(InputError, match="Expected a causal language model that transformers"):
        load_whole_target(tmp_path)


def test_a_folder_is_loaded_by_its_path_and_named_by_it(target, tmp_path):
    target.model.save_pretrained(tmp_path / "tiny-llama")
    loaded = load_whole_target(tmp_path / "tiny-llama", device="cpu")
    assert (loaded.name, loaded.tokenizer, loaded.n_layers) == ("tiny-llama", None, N_LAYERS)
    for boundary, state in prefill(target, IDS, EVERY)[0].items():
        assert torch.equal(prefill(loaded, IDS, [boundary])[0][boundary], state)


def test_a_run_in_bfloat16_is_stored_as_it_was(tmp_path):
    whole = recognise(tiny_model("Qwen3Config", CAPTURED["Qwen3Config"]).bfloat16())
    files = capture(whole, PROMPTS, tmp_path, [N_LAYERS], new_tokens=20, progress=False)
    found = own_logits(whole, files)
    assert (found.logit_error, found.logprob_error) == (0, 0)
    assert check_own_logits(found, rounded=False).severity == Severity.OK


def test_words_go_through_the_chat_template(target):
    import tokenizers
    import transformers

    words = {
        word: i for i, word in enumerate(["<unk>", "user", "assistant", "system", "name", "rivers", "be", "brief"])
    }
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain)
    talking = replace(target, tokenizer=tokenizer)
    with pytest.raises(InputError, match="no chat template; give token ids"):
        encode(talking, "name rivers")
    turn = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    tokenizer.chat_template = turn + "{% if add_generation_prompt %}assistant{% endif %}"
    assert encode(talking, "name rivers") == [1, 4, 5, 2]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "rivers"}]
    assert encode(talking, messages) == [3, 6, 7, 1, 5, 2]


def test_transformers_is_needed_only_here():
    code = (
        "import sys; sys.modules['transformers'] = None; import eagle3lib, eagle3lib.run\n"
        "from eagle3lib.capture import load_whole_target\n"
        "try:\n    load_whole_target('x')\nexcept eagle3lib.InputError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert "needs transformers, which is not installed here" in done.stdout


@pytest.mark.slow
@torch.inference_mode()
def test_smollm2_gives_its_own_logits_back(tmp_path):
    whole = living_target().whole
    ask = {"new_tokens": 24, "progress": False}
    prompts, last = ["Name three rivers.", "Why is the sky blue?"], [whole.n_layers]
    exact = capture(whole, prompts, tmp_path / "float32", last, stored="float32", **ask)
    for file in exact:
        held = load_file(file)
        theirs = whole.model(input_ids=held["token_ids"][None]).logits[0]
        mine = whole.logits(whole.final_norm(held[f"boundary.{whole.n_layers}"]))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
    assert own_logits(whole, exact).logit_error <= 1e-4
    rounded = own_logits(whole, capture(whole, prompts, tmp_path / "bfloat16", last, **ask))
    assert 0 < rounded.logprob_error < 0.01


@pytest.mark.slow
def test_prepare_would_write_the_committed_samples_again():
    """One greedy and one sampled answer of the bundled dumps, from their prompts alone."""
    import prepare

    target = living_target()
    for name, temperature in (("every", 0.0), ("sampled", prepare.TEMPERATURE)):
        stored = {"every": tuple(range(target.n_layers + 1)), "sampled": prepare.FOUR}[name]
        held = next(iter(open_dump(CASE.parent / "dumps" / name, stored)))
        prompt = held.token_ids[: held.turns[0].begin].tolist()
        token_ids, _ = prepare._answer(target, prompt, temperature)
        assert torch.equal(token_ids, held.token_ids)
        states, logprobs = target.prefill(token_ids, stored)
        for boundary in stored:  # to one unit in the last place, should a machine sum otherwise
            mine = states[boundary].to(torch.bfloat16).float()
            torch.testing.assert_close(mine, held.state(boundary).float(), rtol=2**-7, atol=1e-3)
        torch.testing.assert_close(logprobs[1:], held.logprobs[1:], rtol=0, atol=1e-4)
