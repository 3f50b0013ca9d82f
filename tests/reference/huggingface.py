"""Hugging Face models in and out: small random models of every architecture that can be imported.

Each is saved by transformers in several files, imported, and exported again: every tensor bitwise, loaded by
transformers without a missing or unexpected key, with equal logits. Packed tensors of experts give the same. Logits of
`espalier sample`, of a prompt and of tokens after it, equal the exported model's in fp64 to 1e-5. Twenty steps from the
imported weights equal those of Hugging Face's model with AdamW in fp64 to 1e-5, on one rank and at pp 2 x dp 2 x tp 2,
where two ranks share the experts.
A run with run.init_from has the losses of the run that was imported. What no deck can express is refused by name, and
damaged files are refused. Import and export hold one tensor at a time. Needs the packages of
tests/oracle/requirements_torch.txt; exits 77 without them.
"""
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from support.reference import reference_python  # noqa: E402

if importlib.util.find_spec("transformers") is None:
    os.execv(python := reference_python("torch"), [python, os.path.realpath(__file__), *sys.argv[1:]])

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "oracle"))
import safetensors.torch  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # noqa: E402

import oracle  # noqa: E402
from support.runs import Checks, Metrics, difference, launch, scratch  # noqa: E402

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 20}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 12}
COMMON = {"vocab_size": 259, "hidden_size": 44, "intermediate_size": 70, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 36, "initializer_range": 0.05}
MLA = {"num_key_value_heads": 4, "kv_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "v_head_dim": 12}
# Architecture, what differs from COMMON, element type of the files.
MODELS = {
    "llama2": ("Llama", {"num_key_value_heads": 4, "head_dim": 10}, "float32"),
    "llama31": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 14, "attention_bias": True, "mlp_bias": True},
                "float32"),
    "smollm": ("Llama", {"tie_word_embeddings": True, "head_dim": 12, "rms_norm_eps": 1e-5}, "bfloat16"),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": 9}, "float32"),
    "full_mistral": ("Mistral", {"head_dim": 16, "sliding_window": None}, "float32"),
    "qwen2": ("Qwen2", {"hidden_size": 56, "tie_word_embeddings": True, "rope_parameters": YARN}, "float32"),
    "qwen3": ("Qwen3", {"head_dim": 8}, "float32"),
    "phi3": ("Phi3", {"hidden_size": 48, "pad_token_id": None, "resid_pdrop": 0.0, "sliding_window": None}, "float32"),
    "olmo2": ("Olmo2", {"hidden_size": 40, "num_hidden_layers": 3}, "float32"),
    "mixtral": ("Mixtral", {"head_dim": 12, "sliding_window": 9, "num_local_experts": 6, "num_experts_per_tok": 2,
                            "intermediate_size": 26}, "float32"),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 8, "num_hidden_layers": 4, "mlp_only_layers": [0], "num_experts": 6,
                               "num_experts_per_tok": 3, "moe_intermediate_size": 18, "norm_topk_prob": True},
                  "bfloat16"),
    "qwen2_moe": ("Qwen2Moe", {"hidden_size": 56, "num_hidden_layers": 3, "mlp_only_layers": [0], "num_experts": 6,
                               "num_experts_per_tok": 3, "moe_intermediate_size": 18,
                               "shared_expert_intermediate_size": 30}, "float32"),
    "glm4_moe": ("Glm4Moe", {"head_dim": 12, "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 3,
                             "moe_intermediate_size": 18, "n_shared_experts": 2, "n_group": 4, "topk_group": 2,
                             "routed_scaling_factor": 2.5, "use_qk_norm": True, "attention_bias": True}, "bfloat16"),
    "deepseek_v3": ("DeepseekV3", MLA | {
        "num_hidden_layers": 3, "q_lora_rank": 17, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 18, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}, "bfloat16"),
    "deepseek_v3_dense": ("DeepseekV3", MLA | {
        "q_lora_rank": 17, "n_routed_experts": 8, "moe_intermediate_size": 18, "first_k_dense_replace": 2}, "float32"),
    "deepseek_v2": ("DeepseekV2", MLA | {
        "num_hidden_layers": 3, "q_lora_rank": None, "n_routed_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 18, "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
        "rope_parameters": YARN | {"mscale": 0.9, "mscale_all_dim": 0.707}}, "float32"),
    "deepseek_v2_groups": ("DeepseekV2", MLA | {
        "q_lora_rank": 17, "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 18,
        "n_shared_experts": 1, "first_k_dense_replace": 0, "routed_scaling_factor": 2.0, "n_group": 4, "topk_group": 2,
        "topk_method": "group_limited_greedy"}, "float32"),
    "olmoe": ("Olmoe", {"hidden_size": 40, "num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 22},
              "float32"),
    "gpt_oss": ("GptOss", {"hidden_size": 64, "head_dim": 12, "num_hidden_layers": 3, "num_local_experts": 8,
                           "num_experts_per_tok": 3, "intermediate_size": 32, "sliding_window": 9, "swiglu_limit": 0.3,
                           "rope_parameters": YARN | {"truncate": False}}, "float32"),
    "gpt2": ("GPT2", {"vocab_size": 259, "n_embd": 44, "n_layer": 2, "n_head": 4, "n_positions": 36, "n_inner": 70,
                      "initializer_range": 0.05, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}, "float32"),
}
RUN = ["run.steps=20", "data.format=text", "data.shuffle=false", "batch.global=8", "batch.micro=1", "optimizer.lr=1e-3",
       "optimizer.eps=1e-6", "lr.warmup_steps=4", "precision.compute=fp32", "checkpoint.every_steps=0",
       f"data.paths=['{ROOT}/tests/oracle/data/text.txt']"]
EIGHT = ["parallel.pp=2", "parallel.dp_shard=2", "parallel.tp=2"]


def make(name, folder):
    """Saves the model with random biases and norms, in several files."""
    kind, own, dtype = MODELS[name]
    torch.manual_seed(len(name) + 17)
    config = getattr(transformers, kind + "Config")(**(own if kind == "GPT2" else COMMON | own))
    model = getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if not oracle.is_matrix(parameter_name, parameter):
                parameter.add_(0.1 * torch.randn_like(parameter))
        for buffer in oracle.router_biases(model).values():
            buffer.copy_(0.1 * torch.randn_like(buffer))
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="30KB")
    return model


def tensors(folder):
    found = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            found |= safetensors.torch.load_file(os.path.join(folder, file))
    return found


def make_tokenizer(folder):
    """Every byte and three merges: as many tokens as the models have."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=259, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the tree and the trellis, the other and the rest"] * 9, trainer)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def quietly(ranks, *arguments, status=0):
    done = launch(ranks, list(arguments))
    if done.returncode != status:
        sys.exit(f"espalier {' '.join(arguments)}: exit status {done.returncode}, expected {status}\n{done.stdout}")
    return done.stdout


def taken_apart(tensors):
    """Phi-3's joined projections as Llama has them; other tensors stay."""
    found = {}
    for name, tensor in tensors.items():
        if ".qkv_proj." in name:
            heads, others = COMMON["num_attention_heads"], COMMON["num_key_value_heads"]
            width = len(tensor) // (heads + 2 * others)
            parts = tensor.split([heads * width, others * width, others * width])
            found |= {name.replace("qkv_proj", f"{k}_proj"): part for k, part in zip("qkv", parts)}
        elif ".mlp.gate_up_proj." in name:
            found |= {name.replace("gate_up", k): part for k, part in zip(("gate", "up"), tensor.chunk(2))}
        else:
            found[name] = tensor
    return found


def check_tensors(checks, name, folder, out):
    """Names, types and bits of all tensors, and what transformers makes of them."""
    before, after = taken_apart(tensors(folder)), tensors(out)
    same = before.keys() == after.keys() and all(
        a.dtype == after[n].dtype and torch.equal(a, after[n]) for n, a in before.items())
    checks.that(same, f"{name}: {len(before)} tensors are exported as they were imported")
    checks.that(len([f for f in os.listdir(out) if f.endswith(".safetensors")]) > 1, f"{name}: in several files")
    # The default, grouped matmuls, takes no odd sizes.
    load = functools.partial(transformers.AutoModelForCausalLM.from_pretrained, experts_implementation="eager")
    old, (new, info) = load(folder), load(out, output_loading_info=True)
    # Mistral without a window is Llama, and so is Phi-3.
    kind = transformers.LlamaForCausalLM if name in ("full_mistral", "phi3") else type(old)
    checks.that(type(new) is kind and not any(info.values()), f"{name}: {type(new).__name__} loads it: {info}")
    ids = torch.arange(2 * 30).reshape(2, 30) * 7 % 259
    with torch.no_grad():
        far = (old(ids).logits - new(ids).logits).abs().max().item()
    # Joined matmuls round in another way.
    checks.that(far <= (1e-6 if name == "phi3" else 0), f"{name}: the same logits ({far:g})")


def check_logits(checks, name, home, run, out):
    """Logits of a prompt at once, and of the tokens that follow it, one by one."""
    file, prompt = os.path.join(home, f"{name}.safetensors"), [k * k * 31 % 259 for k in range(3, 15)]
    quietly(1, "sample", run, "--ids", " ".join(map(str, prompt)), "--tokens", "21", "--temperature", "1", "--logits",
            file)
    found = safetensors.torch.load_file(file)
    ids, ours = found["prompt.0.ids"], found["prompt.0.logits"]
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager")
    with torch.no_grad():
        theirs = oracle.compute_in_double(model)(ids[None].long()).logits[0]
    far = (ours.double() - theirs.double()).abs().max().item()
    checks.that(len(ids) == 32 and ids[:12].tolist() == prompt and far <= 1e-5 and theirs.std() > 0.05,
                f"{name}: sample's logits of {len(ids)} tokens are within {far:.1e} of the exported model's in fp64")


def expected(folder, run):
    """Twenty steps of Hugging Face's model in fp64."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager")
    deck = oracle.load_deck(os.path.join(run, "deck.toml"))
    return list(oracle.train(oracle.compute_in_double(model), deck, 20))


def check_training(checks, name, home, folder, run):
    truth = expected(folder, run)
    eight = EIGHT + (["parallel.ep=2"] if "num_experts_per_tok" in MODELS[name][1] else [])
    deck, curves = os.path.join(run, "deck.toml"), {}
    for ranks, keys in ((1, []), (8, eight)):
        other = os.path.join(home, f"{name}-{ranks}")
        shutil.copytree(run, other)
        quietly(ranks, "run", os.path.join(other, "deck.toml"), "-d", other, *keys)
        curves[ranks] = Metrics(other)
        far = {key: difference(curves[ranks].curve(key), [s[key] for s in truth]) for key in ("loss", "grad_norm")}
        checks.that(max(far.values()) <= 1e-5, f"{name}, {ranks} ranks: "
                    + ", ".join(f"{k} {v:.1e}" for k, v in far.items()) + " from fp64")
    new = os.path.join(home, f"{name}-from")
    said = quietly(8, "run", deck, "-d", new, f"run.init_from={folder}", *eight)
    checks.that("starts from the weights of" in said, f"{name}: run.init_from says what it did")
    checks.that(Metrics(new).curve("loss") == curves[8].curve("loss"), f"{name}: run.init_from has the same losses")


def check_packed(checks, name, home, model, folder):
    """Files with the experts of a layer in two tensors, as transformers 5 has them in memory."""
    packed, run, out = (os.path.join(home, f"{name}-packed-{what}") for what in ("hf", "run", "out"))
    os.mkdir(packed)
    shutil.copy(os.path.join(folder, "config.json"), packed)
    parameters = {n: p.detach().contiguous() for n, p in model.named_parameters()}
    parameters |= oracle.router_biases(model)
    safetensors.torch.save_file(parameters, os.path.join(packed, "model.safetensors"))
    quietly(1, "import", packed, run, *RUN)
    quietly(1, "export", run, out, "--dtype", "bf16" if MODELS[name][2] == "bfloat16" else "fp32")
    before, after = tensors(folder), tensors(out)
    same = before.keys() == after.keys() and all(torch.equal(a, after[n]) for n, a in before.items())
    checks.that(same and len(parameters) < len(before), f"{name}: packed, its {len(parameters)} tensors are the same "
                                                        f"{len(before)}")


def check_mxfp4(checks, name, home, folder):
    """Experts in blocks of four bits, as gpt-oss was released, become what transformers makes of them."""
    packed, run, out = (os.path.join(home, f"{name}-mxfp4-{what}") for what in ("hf", "run", "out"))
    changed(folder, packed, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    for file in os.listdir(packed):
        if file.endswith(".safetensors") or file.endswith("index.json"):
            os.remove(os.path.join(packed, file))
    stored, wanted = {}, tensors(folder)
    for weight in [n for n in wanted if ".experts." in n and not n.endswith("_bias")]:
        experts, width, outs = wanted[weight].shape
        blocks = torch.randint(0, 256, (experts, outs, width // 32, 16), dtype=torch.uint8)
        scales = torch.randint(119, 124, (experts, outs, width // 32), dtype=torch.uint8)
        wanted[weight] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        stored |= {f"{weight}_blocks": blocks, f"{weight}_scales": scales}
    stored |= {n: t for n, t in wanted.items() if f"{n}_blocks" not in stored}
    safetensors.torch.save_file(stored, os.path.join(packed, "model.safetensors"))
    said = quietly(1, "import", packed, run, *RUN)
    checks.that("MXFP4 was widened" in said, f"{name}: import says that it has widened MXFP4")
    quietly(1, "export", run, out)
    after = tensors(out)
    checks.that(after.keys() == wanted.keys() and all(torch.equal(t, after[n]) for n, t in wanted.items()),
                f"{name}: {len(stored)} tensors, some in MXFP4, are those of transformers")
    new = os.path.join(home, f"{name}-mxfp4-from")
    said = quietly(2, "run", os.path.join(run, "deck.toml"), "-d", new, f"run.init_from={packed}", "run.steps=2",
                   "parallel.dp_shard=2", "parallel.ep=2")
    quietly(2, "run", os.path.join(run, "deck.toml"), "-d", f"{new}-run", f"run.init_from={run}", "run.steps=2",
            "parallel.dp_shard=2", "parallel.ep=2")
    checks.that("MXFP4 was widened" in said and Metrics(new).curve("loss") == Metrics(f"{new}-run").curve("loss"),
                f"{name}: run.init_from reads it, too")
    stored["model.layers.0.mlp.experts.down_proj_scales"] = torch.zeros(8, 64, 2, dtype=torch.uint8)
    safetensors.torch.save_file(stored, os.path.join(packed, "model.safetensors"))
    said = quietly(1, "import", packed, os.path.join(home, "never"), *RUN, status=3)
    checks.that("down_proj_scales: [8,64,2], but the model has [8,64,1]" in said, f"{name}: refused: other scales")


def check_model(checks, name, home):
    folder, run, out = (os.path.join(home, f"{name}-{what}") for what in ("hf", "run", "out"))
    model = make(name, folder)
    said = quietly(1, "import", folder, run, *RUN)
    checks.that("tokenizer: none" in said, f"{name}: import says that there is no tokenizer")
    bf16 = MODELS[name][2] == "bfloat16"
    quietly(1, "export", run, out, "--shard-size", "30KB", "--dtype", "bf16" if bf16 else "fp32")
    check_tensors(checks, name, folder, out)
    check_logits(checks, name, home, run, out)
    check_training(checks, name, home, folder, run)
    if name == "gpt_oss":
        check_mxfp4(checks, name, home, folder)
    elif any(".experts." in n for n, _ in model.named_parameters()):
        check_packed(checks, name, home, model, folder)


# Bytes that no writer of JSON would write.
COMPANIONS = {"tokenizer_config.json": b'{"chat_template":\t"{{ x }}",\r\n"model_max_length": 1E+30 }',
              "special_tokens_map.json": b'{"eos_token": "\xc3\xa9"}\n\n',
              "chat_template.jinja": b"{% for m in messages %}\x00{{ m }}\n{% endfor %}",
              "generation_config.json": b'{"eos_token_id": [1, 2],   "temperature": 0.60}'}


def contents(folder, names):
    return {name: pathlib.Path(folder, name).read_bytes() for name in names if os.path.exists(f"{folder}/{name}")}


def check_companions(checks, home, folder):
    """Files beside the tokenizer come back byte for byte, also from a checkpoint that a run made of the import."""
    run, out, later = (os.path.join(home, f"companions-{what}") for what in ("run", "out", "later"))
    for name, bytes_ in COMPANIONS.items():
        pathlib.Path(folder, name).write_bytes(bytes_)
    said = quietly(1, "import", folder, run, *RUN, "checkpoint.every_steps=2")
    checks.that(all(name in said for name in COMPANIONS), "import names the files beside the tokenizer")
    quietly(1, "export", run, out)
    checks.that(contents(out, COMPANIONS) == COMPANIONS, "the files beside the tokenizer come back byte for byte")
    quietly(2, "run", os.path.join(run, "deck.toml"), "run.steps=2", "parallel.dp_shard=2",
            f"data.index_dir={home}")
    said = quietly(1, "export", f"{run}/checkpoints/step-00000002", later)
    checks.that(contents(later, COMPANIONS) == COMPANIONS and all(name in said for name in COMPANIONS),
                "... also after training")
    said = quietly(1, "inspect", run, "--verify")
    checks.that("step-00000002" in said, "... in a checkpoint that is whole")
    loaded = transformers.GenerationConfig.from_pretrained(later)
    checks.that(loaded.temperature == 0.6 and loaded.eos_token_id == [1, 2], "... and transformers reads them")
    kept = f"{run}/checkpoints/step-00000002/chat_template.jinja"
    pathlib.Path(kept).write_bytes(COMPANIONS["chat_template.jinja"] + b" ")
    said = quietly(1, "export", run, os.path.join(home, "companions-damaged"), status=3)
    checks.that("chat_template.jinja" in said, "... and damage is found")
    os.remove(os.path.join(folder, "tokenizer.json"))
    said = quietly(1, "import", folder, os.path.join(home, "companions-alone"), *RUN)
    checks.that("not kept without a tokenizer: " + ", ".join(sorted(COMPANIONS)) in said,
                "files beside no tokenizer are not kept, and import says so")


def check_tokenizer(checks, home):
    """Imported with a model, used by sample, exported again."""
    folder, run, out = (os.path.join(home, f"with-tokenizer-{what}") for what in ("hf", "run", "out"))
    shutil.copytree(os.path.join(home, "llama31-hf"), folder)
    make_tokenizer(folder)
    checks.that("tokenizer.json" in quietly(1, "import", folder, run, *RUN), "import names the tokenizer")
    quietly(1, "export", run, out)
    same = []
    for where in (folder, out):
        with open(os.path.join(where, "tokenizer.json"), "rb") as file:
            same.append(file.read())
    checks.that(same[0] == same[1], "the tokenizer comes back byte for byte")
    said = quietly(1, "sample", run, "--prompt", "the tree", "--tokens", "3")
    checks.that(said.startswith("the tree"), "sample continues a text")
    check_companions(checks, home, folder)


def check_upcycled(checks, home):
    """A dense model's feed-forward networks, copied to four experts of each layer: the same function."""
    folder, dense = os.path.join(home, "smollm-hf"), os.path.join(home, "smollm-run")
    run, out = (os.path.join(home, f"upcycled-{what}") for what in ("run", "out"))
    said = quietly(1, "import", folder, run, "--experts", "4", "--per-token", "3", *RUN, "run.seed=5")
    checks.that("4 copies" in said and "seed 5" in said, "upcycled: import says what it did")
    losses = []
    for where in (dense, run):
        other = f"{where}-one-step"
        quietly(2, "run", os.path.join(where, "deck.toml"), "-d", other, f"run.init_from={where}", "run.steps=1",
                "parallel.dp_shard=2")
        losses.append(Metrics(other).curve("loss")[0])
    checks.that(abs(losses[1] / losses[0] - 1) <= 1e-6, f"upcycled: the dense model's loss, {losses}")
    quietly(1, "export", run, out)
    before, after = tensors(folder), tensors(out)
    copies = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    same = all(torch.equal(before[f"model.layers.{l}.mlp.{ours}.weight"].float(),
                           after[f"model.layers.{l}.block_sparse_moe.experts.{j}.{theirs}.weight"])
               for l in range(2) for j in range(4) for ours, theirs in copies.items())
    routers = [after[f"model.layers.{l}.block_sparse_moe.gate.weight"] for l in range(2)]
    checks.that(same and all(0.03 < r.std() < 0.07 for r in routers) and not torch.equal(*routers),
                "upcycled: every expert is a copy, routers are drawn")
    for arguments, word in ((["--experts", "0"], "at least 1"), (["--experts", "2", "--per-token", "3"], "1 to 2")):
        said = quietly(1, "import", folder, os.path.join(home, "never"), *arguments, status=2)
        checks.that(word in said, f"refused: {' '.join(arguments)}")
    never = os.path.join(home, "never")
    said = quietly(1, "import", os.path.join(home, "mixtral-hf"), never, "--experts", "2", status=2)
    checks.that("has experts already" in said, "refused: experts of experts")
    said = quietly(1, "import", os.path.join(home, "gpt2-hf"), never, "--experts", "2", status=2)
    checks.that("has no gate" in said, "refused: experts of GPT-2")


def changed(folder, to, **keys):
    """A copy of a folder with other keys in config.json."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    with open(os.path.join(to, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(to, "config.json"), "w") as file:
        json.dump(config | keys, file)
    return to


def check_refusals(checks, home):
    folder, run = os.path.join(home, "llama2-hf"), os.path.join(home, "refused")
    def refused(what, source, *words, status=3):
        said = quietly(1, "import", source, run, *RUN, status=status)
        checks.that(all(word in said for word in words) and not os.path.exists(run), f"refused: {what}")
    copy = lambda **keys: changed(folder, os.path.join(home, "changed"), **keys)
    refused("other activations and impossible dropout, both named", copy(hidden_act="gelu", attention_dropout=1.5),
            "hidden_act", "\"silu\"", "attention_dropout = 1.5", "below 1")
    refused("an unknown key", copy(hidden_act="silu", attention_dropout=0.0, num_experts=8), "num_experts = 8")
    refused("another architecture", copy(model_type="gemma2"), "gemma2", "\"qwen3_moe\"")
    refused("another RoPE", copy(rope_parameters={"rope_type": "longrope", "rope_theta": 1.0}), "longrope", "\"yarn\"")
    refused("another shape", copy(intermediate_size=71), "mlp.up_proj.weight")
    refused("a folder without weights", home, "config.json")
    damaged = os.path.join(home, "damaged")
    shutil.copytree(folder, damaged)
    first = os.path.join(damaged, sorted(f for f in os.listdir(damaged) if f.endswith(".safetensors"))[0])
    with open(first, "r+b") as file:
        file.truncate(os.path.getsize(first) - 1)
    refused("a file that is cut short", damaged, "cut short")
    os.remove(first)
    refused("a file that is missing", damaged, os.path.basename(first))
    taken = os.path.join(home, "llama2-run")
    checks.that("is there already" in quietly(1, "import", folder, taken, *RUN, status=2), "refused: a run that exists")
    checks.that("is there already" in quietly(1, "export", taken, folder, status=2), "refused: a folder that exists")
    strange = os.path.join(home, "strange")
    quietly(1, "run", os.path.join(ROOT, "tests", "decks", "small.toml"), "-d", strange, "run.steps=1",
            "model.norm_placement=post")
    said = quietly(1, "export", strange, os.path.join(home, "never"), status=2)
    checks.that("model.norm_placement = \"post\"" in said and not os.path.exists(os.path.join(home, "never")),
                "refused: an architecture that Hugging Face does not have")
    said = quietly(1, "run", os.path.join(ROOT, "tests", "decks", "small.toml"), "-d", os.path.join(home, "other"),
                   f"run.init_from={folder}", status=3)
    checks.that("run.init_from" in said and "model.dim" in said, "refused: run.init_from of another model")


def peak(*arguments):
    """Most bytes of memory of a command. A process counts what its parent had when it was forked, and this one has
    PyTorch: a small one starts the command."""
    script = ("import resource, subprocess, sys\n"
              "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n"
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n")
    done = subprocess.run([sys.executable, "-c", script, os.environ["ESPALIER"], *arguments], check=True,
                          capture_output=True, text=True)
    return int(done.stdout) * 1024


def check_memory(checks, home):
    """A model of 160 MB whose largest tensor has 6 MB."""
    config = transformers.LlamaConfig(**COMMON | {"hidden_size": 512, "intermediate_size": 3000,
                                                  "num_hidden_layers": 7, "vocab_size": 3001})
    model = transformers.LlamaForCausalLM(config)
    largest = 4 * max(p.numel() for p in model.parameters())
    whole = 4 * sum(p.numel() for p in model.parameters())
    folder, run, out = (os.path.join(home, f"large-{what}") for what in ("hf", "run", "out"))
    model.save_pretrained(folder)
    idle = peak("--version")
    used = {"import": peak("import", folder, run) - idle, "export": peak("export", run, out) - idle}
    for command, most in used.items():
        checks.that(most < largest + (24 << 20) and most < whole / 3,
                    f"{command} of {whole >> 20} MiB, its largest tensor {largest >> 20} MiB, takes {most >> 20} MiB")


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    checks = Checks()
    with scratch() as home:
        for name in sys.argv[1:] or MODELS:
            check_model(checks, name, home)
        if not sys.argv[1:]:
            check_tokenizer(checks, home)
            check_upcycled(checks, home)
            check_refusals(checks, home)
            check_memory(checks, home)
    checks.finish()


main()
