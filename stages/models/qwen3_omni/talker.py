"""The Talker: from a thinker's answer to one frame of codes at a time, the code predictor included.

It rebuilds its whole prompt from ids, the thinker's projected embedding table and the hidden states of media tokens.
Works on one request's rows at a time with all state in `TalkerState`; nothing is kept on the module. Sampling is not
its business: codes are drawn by the function that `frame` is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stages.models.qwen3_omni.modules import CachedDecoder

Draw = Callable[[torch.Tensor, int], int]
"""Picks a code from logits [codebook] for a code group (1 and up)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerInputs:
    """What the thinker's stage hands over for one request, on the CPU.

    `prompt_ids` [n], `generated_ids` [m]; `media_hidden` [media tokens of the prompt, thinker hidden]; the grids
    [media, 3] in patches, `video_second_per_grid` [videos] in seconds and `audio_lengths` [audios] in mel frames place
    media in multimodal rope and are None where there is no such medium.
    """

    prompt_ids: torch.Tensor
    generated_ids: torch.Tensor
    media_hidden: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None
    video_grid_thw: torch.Tensor | None = None
    video_second_per_grid: torch.Tensor | None = None
    audio_lengths: torch.Tensor | None = None


@dataclass(slots=True)
class TalkerState:
    """One request: its prompt until it is prefilled, then its cache, and the text that is still to be spoken.

    `trailing` [k, hidden] is added to the k next inputs, one a step. `last_hidden` [1, 1, hidden] is the last step's.
    """

    embeds: torch.Tensor
    positions: torch.Tensor
    trailing: torch.Tensor
    length: int
    rope_delta: int
    cache: Any
    step: int = 0
    last_hidden: torch.Tensor | None = None


class Talker:
    """transformers' talker, stepwise. `table` [thinker vocabulary, hidden] is the projected embedding table."""

    def __init__(self, module: Any, table: torch.Tensor, config: Any, *, device: torch.device) -> None:
        self._module = module
        self._table = table
        self._config = config
        self._device = device
        self._decoder = CachedDecoder(module.model)
        self._predictor = CachedDecoder(module.code_predictor.model)
        self.code_groups = int(config.talker_config.num_code_groups)

    def start(self, inputs: TalkerInputs, speaker: int) -> TalkerState:
        """Builds the prompt: the user turns, then the head of the answer with the speaker's codec tokens.

        The wiring is that of `Qwen3OmniMoeForConditionalGeneration.generate` in transformers. As there, the last
        generated token is not spoken (it is the end of the text, or was cut off by the limit), except where it is the
        only one, with which transformers fails.
        """
        ids = inputs.prompt_ids.to(self._device)
        user = self._user_mask(ids)
        embeds = torch.cat((self._user_rows(ids, inputs)[user], self._answer_head(ids, inputs, speaker)))
        spoken = self._answer_ids(ids, inputs)
        trailing = self._rows(torch.cat((spoken[4:], self._tokens(self._config.tts_eos_token_id))))
        positions, delta = self._positions(ids, user, inputs, len(embeds))
        return TalkerState(
            embeds=embeds[None],
            positions=positions,
            trailing=trailing,
            length=len(embeds),
            rope_delta=delta,
            cache=self._decoder.new_cache(),
        )

    def prefill(self, state: TalkerState) -> torch.Tensor:
        """Runs the prompt; the logits [codec vocabulary] of the first token."""
        return self._advance(state.embeds, state.positions, state)

    def frame(self, code: int, state: TalkerState, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        """Completes the frame that begins with `code` and feeds it; its codes [groups] int32 on the CPU and the logits
        [codec vocabulary] of the next frame's first code.

        As in transformers' `prepare_inputs_for_generation`: the input is the sum of all embeddings of the frame plus
        the next text token, or the pad once the text is over.
        """
        first = self._module.get_input_embeddings()(self._tokens(code))[None]
        codes, embeds = self._residual_codes(code, first, state, draw)
        embeds = embeds.sum(1, keepdim=True)
        if state.step < len(state.trailing):
            embeds = embeds + state.trailing[state.step]
        else:
            embeds = embeds + self._rows(self._tokens(self._config.tts_pad_token_id))
        state.step += 1
        positions = torch.full((3, 1, 1), state.length + state.rope_delta, device=self._device)
        logits = self._advance(embeds, positions, state)
        state.length += 1
        return torch.tensor(codes, dtype=torch.int32), logits

    def _advance(self, embeds: torch.Tensor, positions: torch.Tensor, state: TalkerState) -> torch.Tensor:
        hidden = self._decoder(embeds, positions, state.cache)
        state.last_hidden = hidden[:, -1:]
        logits: torch.Tensor = self._module.codec_head(state.last_hidden)[0, 0]
        return logits

    def _residual_codes(
        self, code: int, first: torch.Tensor, state: TalkerState, draw: Draw
    ) -> tuple[list[int], torch.Tensor]:
        """The frame's codes and their embeddings [1, groups, hidden]: the predictor sees the talker's last hidden state
        and the first code, then each code that it has drawn."""
        if state.last_hidden is None:
            raise RuntimeError("a frame was asked for before the talker's prompt was run")
        predictor = self._module.code_predictor
        cache = self._predictor.new_cache()
        codes, embeds = [code], [first]
        step = torch.cat((state.last_hidden, first), dim=1)
        for group in range(1, self.code_groups):
            end = group + 1
            positions = torch.arange(end - step.shape[1], end, device=self._device)[None]
            hidden = self._predictor(step, positions, cache)
            drawn = draw(predictor.lm_head[group - 1](hidden[:, -1:])[0, 0], group)
            step = predictor.model.codec_embedding[group - 1](self._tokens(drawn))[None]
            codes.append(drawn)
            embeds.append(step)
        return codes, torch.cat(embeds, dim=1)

    def _tokens(self, *ids: int) -> torch.Tensor:
        return torch.tensor(ids, device=self._device)

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._table[ids]

    def _media_mask(self, ids: torch.Tensor) -> torch.Tensor:
        thinker = self._config.thinker_config
        return torch.isin(ids, self._tokens(thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id))

    def _user_mask(self, ids: torch.Tensor) -> torch.Tensor:
        """Tokens [n] of user turns, their header included: those whose last turn start is followed by `user`."""
        index = torch.arange(len(ids), device=self._device)
        starts = torch.where(ids == self._config.im_start_token_id, index, -1)
        role = ids[(torch.cummax(starts, 0).values.clamp_min(0) + 1).clamp_max(len(ids) - 1)]
        return role == self._config.user_token_id

    def _user_rows(self, ids: torch.Tensor, inputs: TalkerInputs) -> torch.Tensor:
        """Rows [n, hidden] of the prompt: hidden states of media tokens, embeddings of all others, projected."""
        rows = self._rows(ids)
        if inputs.media_hidden is not None and len(inputs.media_hidden):
            hidden = inputs.media_hidden.to(self._device, rows.dtype)
            rows = rows.clone()
            rows[self._media_mask(ids)] = self._module.hidden_projection(hidden)
        return rows

    def _answer_ids(self, ids: torch.Tensor, inputs: TalkerInputs) -> torch.Tensor:
        """The last assistant header and the tokens to be spoken after it."""
        header = torch.nonzero(
            (ids[:-1] == self._config.im_start_token_id) & (ids[1:] == self._config.assistant_token_id)
        )
        generated = inputs.generated_ids.to(self._device)
        spoken = generated[:-1] if len(generated) > 1 else generated
        return torch.cat((ids[int(header[-1]) :], spoken))

    def _answer_head(self, ids: torch.Tensor, inputs: TalkerInputs, speaker: int) -> torch.Tensor:
        """The nine rows [9, hidden] that begin the answer: a text track plus a codec track."""
        config, talker = self._config, self._config.talker_config
        spoken = self._answer_ids(ids, inputs)
        pads = self._tokens(*[config.tts_pad_token_id] * 4, config.tts_bos_token_id)
        text = self._rows(torch.cat((spoken[:3], pads, spoken[3:4])))
        codec = self._module.get_input_embeddings()(
            self._tokens(
                talker.codec_nothink_id,
                talker.codec_think_bos_id,
                talker.codec_think_eos_id,
                speaker,
                talker.codec_pad_id,
                talker.codec_bos_id,
            )
        )
        return torch.cat((text[:3], text[3:] + codec))

    def _positions(
        self, ids: torch.Tensor, user: torch.Tensor, inputs: TalkerInputs, length: int
    ) -> tuple[torch.Tensor, int]:
        """Positions [3, 1, length] of the talker's prompt and what is added to the index of every later step."""
        images = self._of_user_turns(ids, user, inputs.image_grid_thw, self._config.thinker_config.image_token_id)
        videos = self._of_user_turns(ids, user, inputs.video_grid_thw, self._config.thinker_config.video_token_id)
        if images is None and videos is None:
            return torch.arange(length, device=self._device).expand(3, 1, -1), 0
        seconds = self._of_user_turns(
            ids, user, inputs.video_second_per_grid, self._config.thinker_config.video_token_id
        )
        audio = self._of_user_turns(ids, user, inputs.audio_lengths, self._config.thinker_config.audio_token_id)
        answer = torch.full((length - int(user.sum()),), self._config.tts_pad_token_id, device=self._device)
        talker_ids = torch.cat((ids[user], answer))[None]
        positions, delta = self._module.get_rope_index(
            talker_ids,
            image_grid_thw=images,
            video_grid_thw=videos,
            attention_mask=torch.ones_like(talker_ids),
            audio_seqlens=audio,
            second_per_grids=seconds,
        )
        return positions.to(self._device), int(delta)

    def _of_user_turns(
        self, ids: torch.Tensor, user: torch.Tensor, per_medium: torch.Tensor | None, token: int
    ) -> torch.Tensor | None:
        """The entries of media in user turns, which are all that the talker sees; None if there is none."""
        if per_medium is None:
            return None
        here = ids == token
        # A medium's tokens are contiguous, and never adjacent to another medium's: markers lie between them.
        first = here & ~torch.cat((here.new_zeros(1), here[:-1]))
        chosen = per_medium[user[first].cpu()]
        return chosen if len(chosen) else None
