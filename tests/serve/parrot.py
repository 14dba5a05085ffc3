"""Models that recite scripts: what a test wants the model to say, token by token.

A chat prompt ends with <think> or </think>; a completion, and a chat whose last turn is to be continued, ends with any
byte. So one model has many scripts, told apart by the prompt's last byte (src/checkpoint/README.md, "parrot").
"""
import json
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Fewer and smaller layers than models/tiny: the words are scripted anyway, so what runs below need not be large.
SMALLER = {
    "vocab_size": 8192, "num_hidden_layers": 4, "compress_ratios": [0, 2, 1, 1, 0, 0], "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3], "candidate_source_layer_id": 2, "engram_layer_ids": [1],
    "engram_num_embeddings": [6090], "dspark_target_layer_ids": [1, 2, 3], "n_routed_experts": 4,
    "num_experts_per_tok": 1, "moe_intermediate_size": 32, "index_n_heads": 2, "num_attention_heads": 4, "o_groups": 1,
    "dspark_n_routed_experts": 4,
}

# The wording that a released checkpoint brings along; any will do for a model that does not read it.
TOOLS_PROMPT = "Functions that may be called, one a line:\n{tool_schemas}\nA call is written with {dsml_token} tags.\n"

DSML = "｜DSML｜"


def parameter(name, value, string=True):
    flag = "true" if string else "false"
    return f'<{DSML} parameter name="{name}" string="{flag}">{value}</{DSML} parameter>\n'


def invoke(name, *parameters):
    return f'<{DSML} invoke name="{name}">\n' + "".join(parameters) + f"</{DSML} invoke>\n"


def calls(*invokes):
    return f"\n\n<{DSML} calls>\n" + "".join(invokes) + f"</{DSML} calls>"


def bytes_of(text, cut=1):
    """Tokens of `cut` bytes each, whatever characters or tags that cuts."""
    data = text.encode()
    return [{"hex": data[i:i + cut].hex()} for i in range(0, len(data), cut)]


def halves(text, at):
    """Two tokens, cut at a byte."""
    data = text.encode()
    return [{"hex": part.hex()} for part in (data[:at], data[at:]) if part]


def write_model(senko, folder, changes, *flags):
    folder = pathlib.Path(folder)
    config = json.loads((ROOT / "models/tiny/config.json").read_text())
    config["text_config"].update({**SMALLER, **changes})
    (folder / "config.json").write_text(json.dumps(config))
    made = subprocess.run(
        [str(senko), "make-model", "--config", str(folder / "config.json"), "--out", str(folder / "model"), *flags],
        capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    return folder / "model"


def make_parrot_model(senko, folder, scripts, **changes):
    """`scripts`: trigger to a list of tokens, or (tokens, "loop")."""
    listed = []
    for trigger, tokens in scripts.items():
        end = "eos"
        if isinstance(tokens, tuple):
            tokens, end = tokens
        listed.append({"trigger": trigger, "tokens": tokens, "end": end})
    script = pathlib.Path(folder) / "script.json"
    script.write_text(json.dumps(listed))
    model = write_model(senko, folder, changes, "--parrot", str(script))
    (model / "tools_prompt.txt").write_text(TOOLS_PROMPT)
    return model


def make_random_model(senko, folder):
    """Random words like the bundled model's, for less: for tests that need many or long prompts."""
    model = write_model(senko, folder, {"vocab_size": 512})
    shutil.copy(ROOT / "models/tiny/tokenizer.json", model)
    return model
