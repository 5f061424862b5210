"""The configuration's schema: every key, its type, its range and its unit. The only check of keys that there is.

The root node of a model family (`synthetic`) is the family's own dataclass and is checked beside this schema, in
`load`. Whether values fit together, the family and the machine is the planner's business.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from omni_cli.config.image import ImageConfig
from omni_cli.config.sampling import ConfigModel, Flag, SamplingConfig, Seconds, Seed, Text
from stages.config import Connector, EdgeMode, ExecutionType

Devices = tuple[tuple[Annotated[int, Strict(), Field(ge=0)], ...], ...]


def _devices(value: Any) -> Any:
    """`cpu` is one replica on no device; a map or text is no list."""
    if value == "cpu":
        return ((),)
    if value is not None and not (isinstance(value, list | tuple) and all(isinstance(v, list | tuple) for v in value)):
        raise ValueError("must be cpu, or a list with a list of devices for each replica: [[0]] one replica on device "
                         "0, [[0],[1]] two replicas")  # fmt: skip
    return value


class StageConfig(ConfigModel):
    """A stage of the topology: how it progresses and who feeds it."""

    execution_type: ExecutionType
    """What drives the stage's progress: llm_ar (tokens), llm_generation (a forward call), diffusion (steps)."""
    inputs: Mapping[str, EdgeMode] = Field(default_factory=dict)
    """For each producer, whether its output is taken `complete` or piece by piece (`incremental`)."""


class PipelineConfig(ConfigModel):
    """Topology only: which stages exist, who consumes whom, which may produce a final output."""

    family: Text
    """Short name of the model family whose contract the topology must keep."""
    stages: Mapping[str, StageConfig] = Field(default_factory=dict)
    """The stages by name."""
    outputs: Mapping[str, Text] = Field(default_factory=dict)
    """For each final output (text, audio, ...) the stage that produces it."""


class EdgeConfig(ConfigModel):
    """How the payloads of one edge are carried. What is null, the planner chooses."""

    connector: Connector | None = None
    """`shm`: a preallocated ring in shared memory; `cuda_ipc`: and a buffer on the producer's GPU for tensors that lie
    there, read by the consumer's; `inline`: inside the control message, for small payloads."""
    slots: Annotated[int, Strict(), Field(ge=1, le=65_536)] | None = None
    """Messages that may be on their way at once, in the ring of each producing replica."""
    ring_bytes: Annotated[int, Strict(), Field(ge=4096, le=1 << 40)] | None = None
    """Size of the ring of each producing replica, and of its buffer on the GPU; the largest payload must fit."""


class StageDeployConfig(ConfigModel):
    """Where a stage runs and with what capacity. What is null, the planner chooses."""

    devices: Annotated[Devices | None, BeforeValidator(_devices)] = None
    """For each replica the positions of its devices in the visible list: [[0],[1]] is two replicas, [[],[]] two
    on the CPU; `cpu` is one there."""
    replicas: Annotated[int, Strict(), Field(ge=1, le=256)] | None = None
    """How many there are of the stage. With one entry of `devices` all are there; with none they are spread out."""
    max_batch: Annotated[int, Strict(), Field(ge=1, le=4096)] | None = None
    """Requests that a replica works on at once."""
    max_queue: Annotated[int, Strict(), Field(ge=0, le=1_000_000)] | None = None
    """Requests that may wait in a replica beside those; one more is refused. null is no limit."""
    memory_fraction: Annotated[float, Strict(), Field(gt=0, le=1)] | None = None
    """Share of each device's memory that a replica may take."""
    startup_timeout_s: Seconds = 300.0
    """A replica that is not ready by then ends the start; one that was started again is killed."""
    restarts: Annotated[int, Strict(), Field(ge=0, le=1000)] = 3
    """How often a replica that has died is started again within `restart_window_s`; 0 is never. The first time at once,
    then after 1 s, 2 s and so on up to 30 s."""
    restart_window_s: Seconds = 600.0
    """Restarts longer ago than this do not count."""
    retry: Annotated[int, Strict(), Field(ge=0, le=1000)] | None = None
    """How often a request is run again here, from the same input, if its replica dies before it has handed anything on;
    0 is never. null is 1, or 0 where the input cannot be given again, since it comes piece by piece or from several
    rings: there, more is refused."""
    threads: Annotated[int, Strict(), Field(ge=1, le=1024)] = 1
    """CPU threads of each replica's process."""
    step_tokens: Annotated[int, Strict(), Field(ge=1, le=1 << 20)] | None = None
    """Tokens that one step of an llm_ar stage computes at most, longer prompts are prefilled in chunks; of a diffusion
    stage latent tokens, a larger request runs alone."""
    kv_block_tokens: Annotated[int, Strict(), Field(ge=1, le=1024)] | None = None
    """Tokens in one block of the KV cache."""
    kv_blocks: Annotated[int, Strict(), Field(ge=1, le=1 << 30)] | None = None
    """Blocks of the KV cache; null is as many as the stage's memory holds."""
    first_chunk_frames: Annotated[int, Strict(), Field(ge=1, le=4096)] | None = None
    """Frames of a request's first piece of audio: fewer are heard sooner."""
    chunk_frames: Annotated[int, Strict(), Field(ge=1, le=4096)] | None = None
    """Frames of every later piece of audio."""
    decode: Literal["exact", "transformers"] | None = None
    """`exact`: a waveform as if decoded in one pass; `transformers`: the seams of its 300-frame chunks, for parity."""
    graphs: Flag | None = None
    """Replay captured CUDA graphs; of no use on the CPU."""
    compile: Literal["none", "blocks"] | None = None
    """`blocks`: those that a diffusion transformer repeats are compiled before ready; not on the CPU."""
    step_cache: Literal["none", "first_block"] | None = None
    """`first_block` skips most of a diffusion step whose first block hardly changes. Inexact: each result says how."""
    inputs: Mapping[str, EdgeConfig] = Field(default_factory=dict)
    """Settings of the edge from each producer; `request` is the edge that carries a request's media in."""
    output: EdgeConfig = Field(default_factory=EdgeConfig)
    """Settings of the way out of final media, for a stage that produces some."""


class DeployConfig(ConfigModel):
    """Where each stage runs, with what capacity, and what carries the edges."""

    stages: Mapping[str, StageDeployConfig] = Field(default_factory=dict)
    """Settings by stage; a stage that is left out takes the planner's choice."""
    outputs: tuple[Text, ...] | None = None
    """Final outputs that are deployed, and with them the stages they need; null is all."""
    mps: Literal["auto", "on", "off"] = "auto"
    """Whether processes that share a GPU run side by side under an MPS daemon of the run's own, not in turns; `auto`:
    where one can be started."""
    heartbeat_s: Seconds | None = 300.0
    """A stage that gives no sign of life, or does not come back from a step, is killed within so long, and not before
    three quarters of it; null is never."""
    drain_timeout_s: Seconds = 30.0
    """At a stop, how long the stages may take to let go of their requests and to end by themselves."""

    def stage(self, name: str) -> StageDeployConfig:
        return self.stages.get(name, StageDeployConfig())


class RequestConfig(ConfigModel):
    """What a request wants, whatever it says: the keys of `request.*`, of a JSONL line and of a call over HTTP."""

    modalities: tuple[Text, ...] | None = None
    """The final outputs it asks for; null is all that are deployed."""
    voice: Text | None = None
    """The speaker, by a name that the checkpoint knows; null is its default."""
    seed: Seed | None = None
    """Keys every random draw; null draws one at admission and records it."""
    timeout_s: Seconds | None = None
    """Deadline, from admission on; null is none."""
    sampling: Mapping[str, SamplingConfig] = Field(default_factory=dict)
    """How each sampled stage draws its tokens."""
    image: ImageConfig = Field(default_factory=ImageConfig)
    """How pictures are drawn."""


class ServeConfig(ConfigModel):
    """The server's settings: where it listens, whom it lets in, what one client may cost."""

    host: Text = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every network that this machine is in."""
    port: Annotated[int, Strict(), Field(ge=0, le=65_535)] = 8000
    """TCP port; 0 takes a free one and prints it."""
    model_name: Text | None = None
    """What clients call the model; null is the recipe's name."""
    api_keys: tuple[Text, ...] = ()
    """Keys that are let in; those of the environment variable OMNI_API_KEYS (comma-separated) are added."""
    cors_origins: tuple[Text, ...] = ()
    """Origins whose pages may call the server; `*` is all."""
    max_concurrency: Annotated[int, Strict(), Field(ge=1, le=65_536)] | None = None
    """Requests worked on at once; null is twice what the first stages batch."""
    max_queue: Annotated[int, Strict(), Field(ge=0, le=1_000_000)] = 64
    """Requests that may wait for a place; one more is answered 429."""
    timeout_s: Seconds = 600.0
    """Deadline of a request that sets none, and the longest that one may set."""
    drain_timeout_s: Seconds = 30.0
    """After SIGTERM, how long requests in flight may go on."""
    max_body_bytes: Annotated[int, Strict(), Field(ge=1024, le=1 << 40)] = 64 << 20
    """Size of a request's body; more is answered 413."""
    max_buffered_bytes: Annotated[int, Strict(), Field(ge=1024, le=1 << 40)] = 16 << 20
    """What one client may leave unread; with more it is dropped."""
    max_choices: Annotated[int, Strict(), Field(ge=1, le=1024)] = 16
    """Largest `n` of a request."""
    max_image_pixels: Annotated[int, Strict(), Field(ge=1)] = 16_000_000
    """Width x height of an image."""
    max_audio_s: Seconds = 600.0
    """Length of a recording."""
    max_video_s: Seconds = 120.0
    """Length of a video."""
    media_ring_bytes: Annotated[int, Strict(), Field(ge=4096, le=1 << 40)] = 128 << 20
    """Room for the decoded media of requests in flight, in shared memory."""
    media_hosts: tuple[Text, ...] = ()
    """Hosts from which media may be fetched by URL; empty is none."""
    media_timeout_s: Seconds = 20.0
    """How long fetching one medium may take."""
    media_root: Text | None = None
    """Folder below which `file:` URLs may read; null is nowhere."""
    debug_requests: Flag = False
    """Answer `GET /debug/requests` with what each request in flight waits for; it names the ids of all clients."""
    log_prompts: Flag = False
    """Write the text of requests to the log."""


class TraceConfig(ConfigModel):
    """What is recorded of a run."""

    enabled: Flag = True
    """Write every lifecycle event to trace.jsonl."""


class ModelConfig(ConfigModel):
    """Which weights are run."""

    path: Text | None = None
    """Checkpoint folder, or the name of an embedded checkpoint (`nano`, `tiny`); null is the family's default one."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`auto` loads the folder's weights, `dummy` makes random ones from its config alone."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; `auto` is bfloat16 on a GPU and float32 on the CPU."""


class OmniConfig(ConfigModel):
    """The root. A family's own node stands beside these."""

    pipeline: PipelineConfig
    """Topology: what is legal."""
    deploy: DeployConfig = Field(default_factory=DeployConfig)
    """Deployment: how it is carried."""
    request: RequestConfig = Field(default_factory=RequestConfig)
    """Defaults of every request: what is wanted this time."""
    serve: ServeConfig = Field(default_factory=ServeConfig)
    """The server."""
    trace: TraceConfig = Field(default_factory=TraceConfig)
    """The trace."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The weights."""


# Keys whose value is free text, kept to the letter: paths and names.
_TEXT_KEYS = ("model.path", "request.voice", "request.image.negative_prompt")


def takes_text(key: str) -> bool:
    return key in _TEXT_KEYS
