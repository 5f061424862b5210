"""Puts the pieces of a request's final outputs together again."""

from dataclasses import dataclass, field

from omni_cli.runtime.request import OutputChunk
from stages.events import FinishReason
from stages.payload import Payload


@dataclass(slots=True)
class OmniOutput:
    """One final output: the whole text, or the payloads in order. `reason` is None until it has ended."""

    modality: str
    text: str = ""
    payloads: list[Payload] = field(default_factory=list)
    units: int = 0
    chunks: int = 0
    reason: FinishReason | None = None


class OutputAssembler:
    """Collects the chunks of one request by modality; a chunk out of order is an error of the runtime (ValueError)."""

    def __init__(self, outputs: tuple[str, ...]) -> None:
        self.outputs = {modality: OmniOutput(modality=modality) for modality in outputs}

    def add(self, chunk: OutputChunk) -> OmniOutput:
        output = self.outputs[chunk.modality]
        if chunk.seq != output.chunks or output.reason is not None:
            raise ValueError(f"piece {chunk.seq} of {chunk.modality} came after {output.chunks}")
        output.text += chunk.text
        if chunk.payload is not None:
            output.payloads.append(chunk.payload)
        output.units += chunk.units
        output.chunks += 1
        output.reason = chunk.reason if chunk.eos else None
        return output
