"""The talker's prompt, rebuilt from ids and the hidden states of media tokens, and the text that is still to be spoken.

The wiring is that of `Qwen3OmniMoeForConditionalGeneration.generate` in transformers. Runs projections and look-ups
only; knows neither steps nor sampling.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerInputs:
    """What the thinker's stage hands over of a request's prompt, on the CPU but for `media_hidden`, which may be on the
    device.

    `prompt_ids` [n]; `media_hidden` [media tokens of the prompt, thinker hidden]; the grids [media, 3] in patches,
    `video_second_per_grid` [videos] in seconds and `audio_lengths` [audios] in mel frames place media in multimodal
    rope and are None where there is no such medium.
    """

    prompt_ids: torch.Tensor
    media_hidden: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None
    video_grid_thw: torch.Tensor | None = None
    video_second_per_grid: torch.Tensor | None = None
    audio_lengths: torch.Tensor | None = None


@dataclass(slots=True)
class SpokenText:
    """The thinker's tokens as they come. The last one is not spoken (it is the end of the text, or was cut off by the
    limit), except where it is the only one, on which transformers fails.

    So what follows a token must be known before it is spoken: who is ahead of the thinker waits for text.
    """

    tokens: list[int] = field(default_factory=list)
    ended: bool = False

    def at(self, step: int, *, end: int, pad: int) -> int:
        """The id that is spoken at `step`: token 0 in the prompt, then one a frame; then `end` once, then `pad`.

        Raises RuntimeError if that is not known yet.
        """
        known = len(self.tokens)
        if step == 0 and known:
            return self.tokens[0]
        if not self.ended:
            if step >= known - 1:
                raise RuntimeError(f"text token {step} is not known to be spoken: {known} have come")
            return self.tokens[step]
        spoken = max(known - 1, 1)
        if step < spoken:
            return self.tokens[step]
        return end if step == spoken else pad


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerPrompt:
    """`embeds` [n, hidden] on the device; `positions` [3, n], and `delta`, which is added to the index of every later
    step."""

    embeds: torch.Tensor
    positions: npt.NDArray[np.float32]
    delta: float


class PromptBuilder:
    """`module` is transformers' talker, `table` [thinker vocabulary, hidden] the thinker's projected embeddings."""

    def __init__(self, module: Any, table: torch.Tensor, config: Any) -> None:
        self._module = module
        self._table = table
        self._config = config
        self._device = table.device
        thinker = config.thinker_config
        self._media = torch.tensor([thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id])

    def size(self, inputs: TalkerInputs) -> int:
        """The length of the prompt: the user turns and the nine rows that begin the answer."""
        return int(self._user_mask(inputs.prompt_ids).sum()) + 9

    def build(self, inputs: TalkerInputs, first_token: int, speaker: int) -> TalkerPrompt:
        """The user turns, then the head of the answer with the speaker's codec tokens and the first text token."""
        ids = inputs.prompt_ids
        user = self._user_mask(ids)
        embeds = torch.cat((self._user_rows(ids, user, inputs), self._answer_head(ids, first_token, speaker)))
        positions, delta = self._positions(ids, user, inputs, len(embeds))
        return TalkerPrompt(embeds=embeds, positions=positions, delta=delta)

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._table[ids.to(self._device)]

    def _user_mask(self, ids: torch.Tensor) -> torch.Tensor:
        """Tokens [n] of user turns, their header included: those whose last turn start is followed by `user`."""
        index = torch.arange(len(ids))
        starts = torch.where(ids == self._config.im_start_token_id, index, -1)
        role = ids[(torch.cummax(starts, 0).values.clamp_min(0) + 1).clamp_max(len(ids) - 1)]
        return role == self._config.user_token_id

    def _user_rows(self, ids: torch.Tensor, user: torch.Tensor, inputs: TalkerInputs) -> torch.Tensor:
        """Rows [user tokens, hidden]: hidden states of media tokens, embeddings of all others, projected."""
        rows = self._rows(ids[user])
        if inputs.media_hidden is not None and len(inputs.media_hidden):
            media = torch.isin(ids, self._media)
            hidden = inputs.media_hidden[user[media]].to(self._device, rows.dtype)
            places = torch.nonzero(media[user])[:, 0].to(self._device)
            rows = rows.index_copy(0, places, self._module.hidden_projection(hidden))
        return rows

    def _answer_head(self, ids: torch.Tensor, first_token: int, speaker: int) -> torch.Tensor:
        """The nine rows [9, hidden] that begin the answer: a text track plus a codec track."""
        config, talker = self._config, self._config.talker_config
        headers = torch.nonzero((ids[:-1] == config.im_start_token_id) & (ids[1:] == config.assistant_token_id))
        header = ids[int(headers[-1]) :][:3]
        pads = torch.tensor([config.tts_pad_token_id] * 4 + [config.tts_bos_token_id, first_token])
        text = self._rows(torch.cat((header, pads)))
        codec_ids = (
            talker.codec_nothink_id,
            talker.codec_think_bos_id,
            talker.codec_think_eos_id,
            speaker,
            talker.codec_pad_id,
            talker.codec_bos_id,
        )
        codec = self._module.get_input_embeddings()(torch.tensor(codec_ids, device=self._device))
        return torch.cat((text[:3], text[3:] + codec))

    def _positions(
        self, ids: torch.Tensor, user: torch.Tensor, inputs: TalkerInputs, length: int
    ) -> tuple[npt.NDArray[np.float32], float]:
        """Positions [3, length] of the talker's prompt and what is added to the index of every later step."""
        thinker = self._config.thinker_config
        images = _of_user_turns(ids, user, inputs.image_grid_thw, thinker.image_token_id)
        videos = _of_user_turns(ids, user, inputs.video_grid_thw, thinker.video_token_id)
        if images is None and videos is None:
            return np.broadcast_to(np.arange(length, dtype=np.float32), (3, length)), 0.0
        answer = torch.full((length - int(user.sum()),), self._config.tts_pad_token_id)
        talker_ids = torch.cat((ids[user], answer))[None]
        positions, delta = self._module.get_rope_index(
            talker_ids,
            image_grid_thw=images,
            video_grid_thw=videos,
            attention_mask=torch.ones_like(talker_ids),
            audio_seqlens=_of_user_turns(ids, user, inputs.audio_lengths, thinker.audio_token_id),
            second_per_grids=_of_user_turns(ids, user, inputs.video_second_per_grid, thinker.video_token_id),
        )
        return positions[:, 0].float().numpy(), float(delta)


def _of_user_turns(
    ids: torch.Tensor, user: torch.Tensor, per_medium: torch.Tensor | None, token: int
) -> torch.Tensor | None:
    """The entries of media in user turns, which are all that the talker sees; None if there is none."""
    if per_medium is None:
        return None
    here = ids == token
    # A medium's tokens are contiguous, and never adjacent to another medium's: markers lie between them.
    first = here & ~torch.cat((here.new_zeros(1), here[:-1]))
    chosen = per_medium[user[first]]
    return chosen if len(chosen) else None
