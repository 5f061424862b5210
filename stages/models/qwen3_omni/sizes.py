"""Bytes of each stage of Qwen3-Omni, from its configuration alone: weights, KV cache a token, what a step must read.

Torch-free.
"""

import math
from pathlib import Path
from typing import Any

from stages.models.checkpoint import read_json
from stages.models.qwen3_omni.shapes import expert_count, stage_shapes
from stages.models.registry import StageMemory
from stages.payload import ITEM_BYTES

Config = dict[str, Any]


def stage_memory(model_path: str, stage: str, dtype: str) -> StageMemory:
    """What a replica of the stage holds. Raises KeyError for a field that the configuration does not have."""
    config = read_json(Path(model_path) / "config.json")
    item = ITEM_BYTES[dtype]
    weights = item * sum(math.prod(shape) for _, shape in stage_shapes(config, stage))
    if stage == "code2wav":
        return StageMemory(weight_bytes=weights)
    text = config["thinker_config"]["text_config"]
    if stage == "talker":
        table = int(text["vocab_size"])  # the thinker's embeddings, projected once at load
        text = config["talker_config"]["text_config"]
        weights += item * table * int(text["hidden_size"])
    return StageMemory(
        weight_bytes=weights,
        kv_token_bytes=2 * item * text["num_hidden_layers"] * text["num_key_value_heads"] * text["head_dim"],
        context_tokens=text["max_position_embeddings"],
    )


def step_bytes(model_path: str, stage: str, dtype: str, rows: int, context: int) -> int:
    """What a decode step of `rows`, each behind `context` tokens, has to read at the least; of code2wav, any step.

    Weights once, the code predictor's once for each code that it makes, as they fit no cache; of the experts those that
    one would expect to be chosen, if each row drew its own at random; keys and values of all rows. Activations and the
    state of code2wav are left out: for it this is far below what a long chunk takes.
    """
    config = read_json(Path(model_path) / "config.json")
    memory, item = stage_memory(model_path, stage, dtype), ITEM_BYTES[dtype]
    cached = rows * context * memory.kv_token_bytes
    if stage == "code2wav":
        return memory.weight_bytes
    if stage == "thinker":
        text = config["thinker_config"]["text_config"]
        return cached + item * _decoder_step(text, rows)
    talker = config["talker_config"]
    text, predictor = talker["text_config"], talker["code_predictor_config"]
    shared = text["num_hidden_layers"] * text["hidden_size"] * (3 * text["shared_expert_intermediate_size"] + 1)
    codes = (talker["num_code_groups"] - 1) * (
        predictor["num_hidden_layers"] * _dense_layer(predictor) + predictor["hidden_size"] * predictor["vocab_size"]
    )
    return cached + item * int(_decoder_step(text, rows) + shared + codes)


def _decoder_step(text: Config, rows: int) -> int:
    """Parameters of a mixture-of-experts decoder that a step of `rows` tokens reads, its head included."""
    experts = expert_count(text)
    chosen = experts * (1 - (1 - text["num_experts_per_tok"] / experts) ** rows)
    mixture = text["hidden_size"] * (experts + 3 * chosen * text["moe_intermediate_size"])
    return int(text["num_hidden_layers"] * (_attention(text) + mixture) + text["hidden_size"] * text["vocab_size"])


def _attention(text: Config) -> int:
    hidden, dim = text["hidden_size"], text["head_dim"]
    heads = 2 * text["num_attention_heads"] + 2 * text["num_key_value_heads"]  # query and output, key and value
    return int(hidden * dim * heads + 2 * dim + 2 * hidden)  # norms of queries, of keys, of both blocks


def _dense_layer(predictor: Config) -> int:
    return _attention(predictor) + int(3 * predictor["hidden_size"] * predictor["intermediate_size"])
