"""Every tensor of a published Qwen3-Omni, by name and shape, from its configuration alone. Torch-free."""

from collections.abc import Iterator, Mapping
from typing import Any

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def stage_shapes(config: Mapping[str, Any], stage: str) -> Shapes:
    """The tensors of a stage, in a fixed order, for this `config.json`. KeyError for a field that it does not have."""
    section = config[f"{stage}_config"]
    if stage == "talker":
        yield from _talker(section)
    elif stage == "code2wav":
        yield from _code2wav(section)
    else:
        yield from _text(section)
        yield from _audio_tower(section)
        yield from _visual(section)


def _linear(name: str, out: int, inner: int, *, bias: bool) -> Shapes:
    yield f"{name}.weight", (out, inner)
    if bias:
        yield f"{name}.bias", (out,)


def _layer_norm(name: str, size: int) -> Shapes:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)


def _gated_mlp(name: str, hidden: int, inner: int) -> Shapes:
    yield from _linear(f"{name}.gate_proj", inner, hidden, bias=False)
    yield from _linear(f"{name}.up_proj", inner, hidden, bias=False)
    yield from _linear(f"{name}.down_proj", hidden, inner, bias=False)


def _decoder_layer(name: str, config: Mapping[str, Any], *, qk_norm: bool = True) -> Shapes:
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    yield from _linear(f"{name}.self_attn.q_proj", queries, hidden, bias=False)
    yield from _linear(f"{name}.self_attn.k_proj", keys, hidden, bias=False)
    yield from _linear(f"{name}.self_attn.v_proj", keys, hidden, bias=False)
    yield from _linear(f"{name}.self_attn.o_proj", hidden, queries, bias=False)
    if qk_norm:
        yield f"{name}.self_attn.q_norm.weight", (head,)
        yield f"{name}.self_attn.k_norm.weight", (head,)
    yield f"{name}.input_layernorm.weight", (hidden,)
    yield f"{name}.post_attention_layernorm.weight", (hidden,)


def expert_count(text: Mapping[str, Any]) -> int:
    return int(text["num_experts"] if "num_experts" in text else text["num_local_experts"])


def _experts(name: str, config: Mapping[str, Any]) -> Shapes:
    hidden, count = config["hidden_size"], expert_count(config)
    yield from _linear(f"{name}.gate", count, hidden, bias=False)
    for expert in range(count):
        yield from _gated_mlp(f"{name}.experts.{expert}", hidden, config["moe_intermediate_size"])


def _text(config: Mapping[str, Any]) -> Shapes:
    name, text = "thinker.model", config["text_config"]
    yield f"{name}.embed_tokens.weight", (text["vocab_size"], text["hidden_size"])
    for index in range(text["num_hidden_layers"]):
        yield from _decoder_layer(f"{name}.layers.{index}", text)
        yield from _experts(f"{name}.layers.{index}.mlp", text)
    yield f"{name}.norm.weight", (text["hidden_size"],)
    yield from _linear("thinker.lm_head", text["vocab_size"], text["hidden_size"], bias=False)


def _audio_tower(config: Mapping[str, Any]) -> Shapes:
    name, audio = "thinker.audio_tower", config["audio_config"]
    hidden, channels, bins = audio["d_model"], audio["downsample_hidden_size"], audio["num_mel_bins"]
    for index in (1, 2, 3):
        yield f"{name}.conv2d{index}.weight", (channels, 1 if index == 1 else channels, 3, 3)
        yield f"{name}.conv2d{index}.bias", (channels,)
    yield from _linear(f"{name}.conv_out", hidden, channels * bins // 8, bias=False)
    for index in range(audio["encoder_layers"]):
        layer = f"{name}.layers.{index}"
        for projection in ("k_proj", "v_proj", "q_proj", "out_proj"):
            yield from _linear(f"{layer}.self_attn.{projection}", hidden, hidden, bias=True)
        yield from _layer_norm(f"{layer}.self_attn_layer_norm", hidden)
        yield from _linear(f"{layer}.fc1", audio["encoder_ffn_dim"], hidden, bias=True)
        yield from _linear(f"{layer}.fc2", hidden, audio["encoder_ffn_dim"], bias=True)
        yield from _layer_norm(f"{layer}.final_layer_norm", hidden)
    yield from _layer_norm(f"{name}.ln_post", hidden)
    yield from _linear(f"{name}.proj1", hidden, hidden, bias=True)
    yield from _linear(f"{name}.proj2", audio["output_dim"], hidden, bias=True)


def _vision_merger(name: str, vision: Mapping[str, Any], *, norm: int) -> Shapes:
    inner = vision["hidden_size"] * vision["spatial_merge_size"] ** 2
    yield from _layer_norm(f"{name}.ln_q", norm)
    yield from _linear(f"{name}.mlp.0", inner, inner, bias=True)
    yield from _linear(f"{name}.mlp.2", vision["out_hidden_size"], inner, bias=True)


def _visual(config: Mapping[str, Any]) -> Shapes:
    name, vision = "thinker.visual", config["vision_config"]
    hidden, patch = vision["hidden_size"], vision["patch_size"]
    yield (
        f"{name}.patch_embed.proj.weight",
        (hidden, vision["in_channels"], vision["temporal_patch_size"], patch, patch),
    )
    yield f"{name}.patch_embed.proj.bias", (hidden,)
    yield f"{name}.pos_embed.weight", (vision["num_position_embeddings"], hidden)
    for index in range(vision["depth"]):
        block = f"{name}.blocks.{index}"
        yield from _layer_norm(f"{block}.norm1", hidden)
        yield from _layer_norm(f"{block}.norm2", hidden)
        yield from _linear(f"{block}.attn.qkv", 3 * hidden, hidden, bias=True)
        yield from _linear(f"{block}.attn.proj", hidden, hidden, bias=True)
        yield from _linear(f"{block}.mlp.linear_fc1", vision["intermediate_size"], hidden, bias=True)
        yield from _linear(f"{block}.mlp.linear_fc2", hidden, vision["intermediate_size"], bias=True)
    yield from _vision_merger(f"{name}.merger", vision, norm=hidden)
    for index in range(len(vision["deepstack_visual_indexes"])):
        yield from _vision_merger(
            f"{name}.merger_list.{index}", vision, norm=hidden * vision["spatial_merge_size"] ** 2
        )


def _talker(config: Mapping[str, Any]) -> Shapes:
    text, predictor = config["text_config"], config["code_predictor_config"]
    hidden = text["hidden_size"]
    yield "talker.model.codec_embedding.weight", (text["vocab_size"], hidden)
    for index in range(text["num_hidden_layers"]):
        layer = f"talker.model.layers.{index}"
        yield from _decoder_layer(layer, text)
        yield from _experts(f"{layer}.mlp", text)
        yield from _gated_mlp(f"{layer}.mlp.shared_expert", hidden, text["shared_expert_intermediate_size"])
        yield from _linear(f"{layer}.mlp.shared_expert_gate", 1, hidden, bias=False)
    yield "talker.model.norm.weight", (hidden,)
    yield from _linear("talker.codec_head", text["vocab_size"], hidden, bias=False)
    for projection in ("text_projection", "hidden_projection"):
        inner = text["intermediate_size"]
        yield from _linear(f"talker.{projection}.linear_fc1", inner, config["thinker_hidden_size"], bias=True)
        yield from _linear(f"talker.{projection}.linear_fc2", hidden, inner, bias=True)
    name = "talker.code_predictor"
    for index in range(predictor["num_hidden_layers"]):
        yield from _decoder_layer(f"{name}.model.layers.{index}", predictor)
        yield from _gated_mlp(f"{name}.model.layers.{index}.mlp", hidden, predictor["intermediate_size"])
    yield f"{name}.model.norm.weight", (hidden,)
    for group in range(predictor["num_code_groups"] - 1):
        yield f"{name}.model.codec_embedding.{group}.weight", (predictor["vocab_size"], hidden)
        yield from _linear(f"{name}.lm_head.{group}", predictor["vocab_size"], hidden, bias=False)


def _snake(name: str, channels: int) -> Shapes:
    yield f"{name}.alpha", (channels,)
    yield f"{name}.beta", (channels,)


def _convolution(name: str, out: int, inner: int, kernel: int) -> Shapes:
    yield f"{name}.conv.weight", (out, inner, kernel)
    yield f"{name}.conv.bias", (out,)


def _code2wav(config: Mapping[str, Any]) -> Shapes:
    name, hidden, width = "code2wav", config["hidden_size"], config["decoder_dim"]
    yield f"{name}.code_embedding.weight", (config["codebook_size"] * config["num_quantizers"], hidden)
    for index in range(config["num_hidden_layers"]):
        layer = f"{name}.pre_transformer.layers.{index}"
        yield from _decoder_layer(layer, config, qk_norm=False)
        yield from _gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"])
        yield f"{layer}.self_attn_layer_scale.scale", (hidden,)
        yield f"{layer}.mlp_layer_scale.scale", (hidden,)
    yield f"{name}.pre_transformer.norm.weight", (hidden,)
    for index, ratio in enumerate(config["upsampling_ratios"]):
        block = f"{name}.upsample.{index}"
        yield from _convolution(f"{block}.0", hidden, hidden, ratio)
        yield from _convolution(f"{block}.1.dwconv", hidden, 1, 7)
        yield from _layer_norm(f"{block}.1.norm", hidden)
        yield from _linear(f"{block}.1.pwconv1", 4 * hidden, hidden, bias=True)
        yield from _linear(f"{block}.1.pwconv2", hidden, 4 * hidden, bias=True)
        yield f"{block}.1.gamma", (hidden,)
    yield from _convolution(f"{name}.decoder.0", width, hidden, 7)
    for index, rate in enumerate(config["upsample_rates"]):
        block, inner, out = f"{name}.decoder.{index + 1}.block", width >> index, width >> (index + 1)
        yield from _snake(f"{block}.0", inner)
        yield f"{block}.1.conv.weight", (inner, out, 2 * rate)
        yield f"{block}.1.conv.bias", (out,)
        for unit in (2, 3, 4):
            yield from _snake(f"{block}.{unit}.act1", out)
            yield from _convolution(f"{block}.{unit}.conv1", out, out, 7)
            yield from _snake(f"{block}.{unit}.act2", out)
            yield from _convolution(f"{block}.{unit}.conv2", out, out, 1)
    last = len(config["upsample_rates"]) + 1
    yield from _snake(f"{name}.decoder.{last}", width >> (last - 1))
    yield from _convolution(f"{name}.decoder.{last + 1}", 1, width >> (last - 1), 7)
