"""Sliding windows against Hugging Face's Mistral and Qwen2 (eager attention, fp64) with the same weights: the loss and
the gradient norm of one batch, relative 1e-5. Windows of one token, shorter than the sequence, one token shorter than
it, and as long. In Qwen2 the first layers see all tokens (max_window_layers)."""
import json
import os
import subprocess
import sys

from support.reference import reference_python
from support.runs import Checks, DECK, ROOT, scratch, train

TEXT = os.path.join(ROOT, "tests", "oracle", "data", "text.txt")
SEQUENCE, LAYERS, BATCH = 24, 4, 4
CASES = [("mistral", window, 0) for window in (1, 5, 23, 24)] + [("qwen2", 5, 2), ("qwen2", 3, 1), ("qwen2", 7, 4)]

REFERENCE = r'''
import json, sys
import h5py, torch
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

def compute(request):
    shape = dict(vocab_size=260, hidden_size=48, intermediate_size=88, num_hidden_layers=request["layers"],
                 num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=500000.0,
                 tie_word_embeddings=False, attn_implementation="eager", sliding_window=request["window"],
                 max_position_embeddings=request["sequence"])
    if request["family"] == "mistral":
        model = MistralForCausalLM(MistralConfig(head_dim=12, **shape))
    else:
        full_layers = request["full_layers"]
        model = Qwen2ForCausalLM(Qwen2Config(use_sliding_window=True, max_window_layers=full_layers, **shape))
    model = model.double()
    with h5py.File(request["master"]) as file, torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.bias"):
                parameter.zero_()  # Qwen2 has biases of q, k and v
            else:
                parameter.copy_(torch.from_numpy(file["parameters/" + name][()]).double())
                parameter.trained = True
    s = request["sequence"]
    data = open(request["text"], "rb").read()
    tokens = torch.tensor([list(data[k * s:(k + 1) * s + 1]) for k in range(request["batch"])])
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 260), tokens[:, 1:].reshape(-1))
    loss.backward()
    squares = sum((p.grad ** 2).sum() for p in model.parameters() if hasattr(p, "trained"))
    return {"loss": loss.item(), "grad_norm": squares.sqrt().item()}

print(json.dumps([compute(request) for request in json.load(sys.stdin)]))
'''


def main():
    python, checks = reference_python("torch"), Checks()
    with scratch() as folder:
        runs, requests = {}, []
        for family, window, full_layers in CASES:
            what = f"{family}, window {window}, {full_layers} full layers"
            run = train(os.path.join(folder, what), 1,
                        ["run.steps=1", "data.shuffle=false", f"batch.global={BATCH}", "checkpoint.at_start=true",
                         f"model.sliding_window={window}", f"model.full_attention_layers={full_layers}"], deck=DECK)
            runs[what] = run
            requests.append({"family": family, "window": window, "full_layers": full_layers, "layers": LAYERS,
                             "text": TEXT, "sequence": SEQUENCE, "batch": BATCH,
                             "master": os.path.join(run.checkpoint(0), "master.h5")})
        # One Python for all cases: to load PyTorch and transformers takes longer than to compute.
        done = subprocess.run([python, "-c", REFERENCE], input=json.dumps(requests), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        for (what, run), expected in zip(runs.items(), json.loads(done.stdout.splitlines()[-1])):
            for curve, value in expected.items():
                worst = abs(run.curve(curve)[0] - value) / value
                checks.that(worst <= 1e-5, f"{what}: {curve} {run.curve(curve)[0]:.9g}, {worst:.1e} from {value:.9g}")
    checks.finish()


main()
