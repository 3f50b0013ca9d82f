"""The models and texts of evaluate.py, made by formulas, with the standard library alone: evaluate.py gives them to
Hugging Face's models in fp64, and tests/commands/evaluate.py to `espalier import` and `espalier evaluate`."""
import array
import json
import math
import pathlib

GOLDEN = 0x9E3779B97F4A7C15
WINDOW, STRIDES = 32, (32, 8)
VOCAB, DIM, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 32, 48, 2, 4, 2, 12

ROTARY = {"vocab_size": VOCAB, "hidden_size": DIM, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
          "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu",
          "max_position_embeddings": WINDOW, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
CONFIGS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | ROTARY,
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 9} | ROTARY,
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]} | ROTARY,
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": DIM,
             "n_layer": LAYERS, "n_head": HEADS, "n_positions": WINDOW, "n_inner": FFN,
             "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
             "resid_pdrop": 0.0},
}

# Lengths below, at and beyond a window; the empty one has no target.
TEXTS = ["", "a", "The lattice holds.", "x" * 31, "y z" * 11,
         "Every rank reads the same samples, in the same order. " * 3]


def documents():
    """The tokens of each document: its bytes and a zero."""
    return [[*text.encode(), 0] for text in TEXTS]


def write_texts(path):
    pathlib.Path(path).write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")


def rotary_shapes(config):
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "model.embed_tokens.weight", [VOCAB, DIM]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, shape in (("q", [q, DIM]), ("k", [kv, DIM]), ("v", [kv, DIM]), ("o", [DIM, q])):
            yield f"{at}self_attn.{name}_proj.weight", shape
        if config["model_type"] == "qwen3":
            yield f"{at}self_attn.q_norm.weight", [HEAD_DIM]
            yield f"{at}self_attn.k_norm.weight", [HEAD_DIM]
        for name, shape in (("gate", [FFN, DIM]), ("up", [FFN, DIM]), ("down", [DIM, FFN])):
            yield f"{at}mlp.{name}_proj.weight", shape
        yield f"{at}input_layernorm.weight", [DIM]
        yield f"{at}post_attention_layernorm.weight", [DIM]
    yield "model.norm.weight", [DIM]
    yield "lm_head.weight", [VOCAB, DIM]


def gpt2_shapes(config):
    yield "transformer.wte.weight", [VOCAB, DIM]
    yield "transformer.wpe.weight", [WINDOW, DIM]
    for layer in range(LAYERS):
        for name, shape in (("ln_1", [DIM]), ("attn.c_attn", [DIM, 3 * DIM]), ("attn.c_proj", [DIM, DIM]),
                            ("ln_2", [DIM]), ("mlp.c_fc", [DIM, FFN]), ("mlp.c_proj", [FFN, DIM])):
            yield f"transformer.h.{layer}.{name}.weight", shape
            yield f"transformer.h.{layer}.{name}.bias", shape[-1:]
    yield "transformer.ln_f.weight", [DIM]
    yield "transformer.ln_f.bias", [DIM]


def shapes(config):
    """(name, shape) of every stored tensor."""
    return list((gpt2_shapes if config["model_type"] == "gpt2" else rotary_shapes)(config))


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def weights(name, shape, scale=0.4):
    """As oracle.formula_weights."""
    start, one = fnv1a64(name), 1.0 if len(shape) == 1 and name.endswith(".weight") else 0.0
    return array.array("f", (scale * ((((start + i * GOLDEN) % 2**64) >> 40) / 2**24 - 0.5) + one
                             for i in range(math.prod(shape))))


def write_folder(name, folder):
    """A Hugging Face folder of the model: config.json and model.safetensors."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    config = CONFIGS[name]
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for tensor, shape in shapes(config):
        numbers = weights(tensor, shape).tobytes()
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
