"""lm-eval's loglikelihoods, by echo and logprobs of /v1/completions, against `senko logits`."""
import json
import pathlib
import subprocess

import pytest

np = pytest.importorskip("numpy")
load_file = pytest.importorskip("safetensors.numpy").load_file

HERE = pathlib.Path(__file__).resolve().parent
BATCH = 3

# Both sides have the same logits, bit for bit. The server takes logarithms in float32, of values below 32: a few units
# of 2^-19 a token, and 9 digits are written.
TOLERANCE = 1e-5


def token_logprobs(senko, model, prompts, folder):
    """For each prompt: [len(prompt), vocabulary], row i of what follows token i; in float64."""
    (folder / "tokens.json").write_text(json.dumps({"prompts": prompts}))
    subprocess.run([senko, "logits", "--model", model, "--tokens", folder / "tokens.json", "--out",
                    folder / "logits.safetensors", "--threads", "1"], check=True, capture_output=True, timeout=120)
    tensors = load_file(folder / "logits.safetensors")
    for k, prompt in enumerate(prompts):
        assert tensors[f"prompt_{k}.positions"].tolist() == list(range(len(prompt)))
        logits = tensors[f"prompt_{k}.logits"].astype(np.float64)
        highest = logits.max(axis=1, keepdims=True)
        yield logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("tokenizer", ["local", "server"])
def test_loglikelihoods_agree(senko, server, model, run_tool, moved, tmp_path, tokenizer):
    """With the tokenizer of the model's folder, and with the server's, which lm-eval finds when it is given none."""
    arguments = f"model=model,base_url={server.url}/v1/completions,num_concurrent=4,max_length=8192"
    if tokenizer == "local":
        arguments += f",tokenizer={model}"
    run_tool("lm_eval", "lm-eval", "run", "--model", "local-completions", "--model_args", arguments, "--tasks",
             "senko_choices", "--include_path", HERE, "--batch_size", BATCH, "--log_samples", "--output_path",
             tmp_path / "out", cwd=HERE, HF_HUB_OFFLINE="1")
    counted = moved()
    [results] = (tmp_path / "out").glob("*/results_*.json")
    [samples] = (tmp_path / "out").glob("*/samples_senko_choices_*.jsonl")
    documents = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(documents) == len((HERE / "choices.jsonl").read_text().splitlines())

    scored = []  # of each choice: context, continuation, loglikelihood, whether it is the greedy one
    for document in documents:
        for asked, [[value, greedy]] in zip(document["arguments"].values(), document["resps"], strict=True):
            scored.append((asked["arg_0"], asked["arg_1"], float(value), greedy == "True"))
    # Each once: none was refused and sent again. (What was tokenized counts as stopped.)
    assert counted["request_success_total:length"] == -(-len(scored) // BATCH)
    assert counted["request_success_total:error"] == counted["request_success_total:abort"] == 0

    ids = lambda text: server.ask("/tokenize", prompt=text)["tokens"]  # noqa: E731
    prompts = [ids(context + continuation) for context, continuation, _, _ in scored]
    assert counted["prompt_tokens_total"] == sum(len(prompt) for prompt in prompts)
    expected = []
    logprobs = token_logprobs(senko, model, prompts, tmp_path)
    for (context, continuation, value, greedy), prompt, rows in zip(scored, prompts, logprobs, strict=True):
        begin = len(ids(context))
        places = range(begin, len(prompt))
        expected.append(sum(rows[place - 1, prompt[place]] for place in places))
        assert abs(value - expected[-1]) <= TOLERANCE * len(places), continuation
        assert greedy == all(rows[place - 1].argmax() == prompt[place] for place in places), continuation
    assert max(expected) - min(expected) > 10  # a wrong place would not go unseen

    right = []
    for document in documents:
        mine, expected = expected[:len(document["resps"])], expected[len(document["resps"]):]
        right.append(int(np.argmax(mine)) == document["doc"]["answer"])
    assert json.loads(results.read_text())["results"]["senko_choices"]["acc,none"] == pytest.approx(np.mean(right))
