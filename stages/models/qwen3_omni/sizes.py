"""Bytes of each stage of Qwen3-Omni, from its configuration alone: weights, KV cache a token, what a step must read.

Torch-free. The shapes are those of transformers' modules; a test holds the sums to the headers of a checkpoint.
"""

from pathlib import Path
from typing import Any

from stages.models.checkpoint import read_json
from stages.models.registry import StageMemory
from stages.payload import ITEM_BYTES

Config = dict[str, Any]


def stage_memory(model_path: str, stage: str, dtype: str) -> StageMemory:
    """What a replica of the stage holds. Raises KeyError for a field that the configuration does not have."""
    config = read_json(Path(model_path) / "config.json")
    item = ITEM_BYTES[dtype]
    if stage == "code2wav":
        return StageMemory(weight_bytes=item * _code2wav(config["code2wav_config"]))
    if stage == "thinker":
        return _language(config["thinker_config"]["text_config"], item * _thinker(config["thinker_config"]), item)
    text = config["thinker_config"]["text_config"]
    talker = config["talker_config"]
    # the thinker's embeddings, projected once at load
    table = int(text["vocab_size"]) * int(talker["text_config"]["hidden_size"])
    return _language(talker["text_config"], item * (_talker(talker) + table), item)


def _language(text: Config, weight_bytes: int, item: int) -> StageMemory:
    return StageMemory(
        weight_bytes=weight_bytes,
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
    experts = _expert_count(text)
    chosen = experts * (1 - (1 - text["num_experts_per_tok"] / experts) ** rows)
    mixture = text["hidden_size"] * (experts + 3 * chosen * text["moe_intermediate_size"])
    return int(text["num_hidden_layers"] * (_attention(text) + mixture) + text["hidden_size"] * text["vocab_size"])


def _linear(inputs: int, outputs: int) -> int:
    """With a bias."""
    return (inputs + 1) * outputs


def _attention(text: Config) -> int:
    hidden, dim = text["hidden_size"], text["head_dim"]
    heads = 2 * text["num_attention_heads"] + 2 * text["num_key_value_heads"]  # query and output, key and value
    return int(hidden * dim * heads + 2 * dim + 2 * hidden)  # norms of queries, of keys, of both blocks


def _experts(text: Config) -> int:
    hidden = text["hidden_size"]
    return int(_expert_count(text) * (hidden + 3 * hidden * text["moe_intermediate_size"]))


def _expert_count(text: Config) -> int:
    return int(text["num_experts"] if "num_experts" in text else text["num_local_experts"])


def _dense_layer(predictor: Config) -> int:
    return _attention(predictor) + int(3 * predictor["hidden_size"] * predictor["intermediate_size"])


def _thinker(thinker: Config) -> int:
    text = thinker["text_config"]
    layers = text["num_hidden_layers"] * (_attention(text) + _experts(text))
    ends = text["hidden_size"] * (2 * text["vocab_size"] + 1)
    return int(layers + ends + _vision(thinker["vision_config"]) + _audio(thinker["audio_config"]))


def _talker(talker: Config) -> int:
    text, predictor = talker["text_config"], talker["code_predictor_config"]
    hidden, source, shared = text["hidden_size"], talker["thinker_hidden_size"], text["shared_expert_intermediate_size"]
    layers = text["num_hidden_layers"] * (_attention(text) + _experts(text) + 3 * hidden * shared + hidden)
    projections = 2 * (_linear(source, source) + _linear(source, hidden))
    groups = 2 * (talker["num_code_groups"] - 1) * predictor["vocab_size"] + 1  # an embedding and a head each
    codes = predictor["num_hidden_layers"] * _dense_layer(predictor) + predictor["hidden_size"] * groups
    return int(layers + hidden * (2 * text["vocab_size"] + 1) + projections + codes)


def _vision(vision: Config) -> int:
    hidden, inner, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    merged = hidden * vision["spatial_merge_size"] ** 2
    patch = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    block = _linear(hidden, 4 * hidden) + _linear(hidden, inner) + _linear(inner, hidden) + 4 * hidden
    merger = _linear(merged, merged) + _linear(merged, out)
    deep = len(vision["deepstack_visual_indexes"])
    mergers = (1 + deep) * merger + 2 * hidden + 2 * deep * merged
    return int(_linear(patch, hidden) + vision["num_position_embeddings"] * hidden + vision["depth"] * block + mergers)


def _audio(audio: Config) -> int:
    width, inner, channels = audio["d_model"], audio["encoder_ffn_dim"], audio["downsample_hidden_size"]
    bins = audio["num_mel_bins"]
    for _ in range(3):  # each convolution halves the mel bins
        bins = (bins + 1) // 2
    convolutions = _linear(9, channels) + 2 * _linear(9 * channels, channels) + channels * bins * width
    layer = 4 * _linear(width, width) + _linear(width, inner) + _linear(inner, width) + 4 * width
    ends = 2 * width + _linear(width, width) + _linear(width, audio["output_dim"])
    return int(convolutions + audio["encoder_layers"] * layer + ends)


def _code2wav(code2wav: Config) -> int:
    hidden, width = code2wav["hidden_size"], code2wav["decoder_dim"]
    layer = 4 * hidden * hidden + 3 * hidden * code2wav["intermediate_size"] + 4 * hidden  # two norms, two scales
    count = code2wav["codebook_size"] * code2wav["num_quantizers"] * hidden
    count += code2wav["num_hidden_layers"] * layer + hidden
    for ratio in code2wav["upsampling_ratios"]:
        block = _linear(7, hidden) + 3 * hidden + _linear(hidden, 4 * hidden) + _linear(4 * hidden, hidden)
        count += _linear(hidden * ratio, hidden) + block
    count += _linear(7 * hidden, width)
    for rate in code2wav["upsample_rates"]:
        inputs, width = width, width // 2
        unit = 4 * width + _linear(7 * width, width) + _linear(width, width)
        count += 2 * inputs + _linear(2 * rate * inputs, width) + 3 * unit
    return int(count + 2 * width + _linear(7 * width, 1))
