"""Scalars with a range, and how a stage draws its tokens: one schema for the command line, YAML, JSONL and HTTP.

Numbers are strict: `"8"` is no number, 1.5 no count, `true` neither, NaN and infinity never.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from stages.messages import Sampling

MAX_TOKENS = 1 << 20  # more than any context; the stage's own limit refuses earlier


class ConfigModel(BaseModel):
    """Base of all nodes: frozen, no unknown key, every field described by the text below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


Text = Annotated[str, Strict(), Field(min_length=1)]
Flag = Annotated[bool, Strict()]
Seconds = Annotated[float, Strict(), Field(gt=0, le=86_400 * 7)]
SEEDS = 1 << 63
Seed = Annotated[int, Strict(), Field(ge=0, lt=SEEDS)]
Tokens = Annotated[int, Strict(), Field(ge=1, le=MAX_TOKENS)]
TokenId = Annotated[int, Strict(), Field(ge=0, lt=1 << 31)]


def _token_key(key: object) -> object:
    """Keys of a map are texts in JSON and in overrides."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() else key


# Strict would refuse a list, which is how JSON and YAML write a tuple.
Stops = Annotated[tuple[Text, ...], Field(max_length=16)]
StopIds = Annotated[tuple[TokenId, ...], Field(max_length=256)]
Bias = Annotated[float, Strict(), Field(ge=-100, le=100)]
Biases = Annotated[dict[Annotated[TokenId, BeforeValidator(_token_key)], Bias], Field(max_length=1024)]


class SamplingConfig(ConfigModel):
    """How one stage draws its tokens. What is null, the checkpoint's own generation config decides."""

    temperature: Annotated[float, Strict(), Field(ge=0, le=10)] | None = None
    """Divides the logits; 0 is greedy."""
    top_k: Annotated[int, Strict(), Field(ge=0, le=1 << 24)] | None = None
    """Draw among the k most likely tokens; 0 among all."""
    top_p: Annotated[float, Strict(), Field(gt=0, le=1)] | None = None
    """Draw among the most likely tokens that together have this probability; 1 among all."""
    min_p: Annotated[float, Strict(), Field(ge=0, lt=1)] | None = None
    """Drop tokens less likely than this share of the most likely one; 0 drops none."""
    repetition_penalty: Annotated[float, Strict(), Field(gt=0, le=10)] | None = None
    """Divides the logits of tokens that have occurred; 1 is none."""
    presence_penalty: Annotated[float, Strict(), Field(ge=-2, le=2)] | None = None
    """Subtracted from the logits of tokens that were generated before; 0 is none."""
    frequency_penalty: Annotated[float, Strict(), Field(ge=-2, le=2)] | None = None
    """Subtracted from a token's logit for each time that it was generated before; 0 is none."""
    logit_bias: Biases = Field(default={})
    """Added to the logits of tokens, by token id; -100 all but forbids one."""
    stop: Stops = ()
    """The text ends before the first of these strings."""
    stop_token_ids: StopIds = ()
    """The stage ends with any of these tokens."""
    min_tokens: Annotated[int, Strict(), Field(ge=0, le=MAX_TOKENS)] = 0
    """No end before so many tokens of this stage."""
    max_tokens: Tokens | None = None
    """The end, reported as `length`, after so many tokens of this stage."""
    seed: Seed | None = None
    """Keys the draws of this stage alone; null takes the request's."""
    ignore_eos: Flag = False
    """Go on to max_tokens past the end token, for measuring."""
    logprobs: Annotated[int, Strict(), Field(ge=0, le=20)] | None = None
    """Report each token's log probability, and those of so many likely tokens beside it; null reports nothing."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})")
        return self

    def message(self) -> Sampling:
        """The same as the message that goes to the stage."""
        fields: dict[str, Any] = self.model_dump()
        return Sampling(**{**fields, "logit_bias": tuple(sorted(self.logit_bias.items()))})
