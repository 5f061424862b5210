"""The options of `omni run`: spellings of `request.*`, and the request's content, which is never configuration."""

from dataclasses import dataclass
from typing import Any

from omni_cli.batch.lines import read_tasks
from omni_cli.batch.task import Task, make_task
from omni_cli.config.load import LoadedConfig
from omni_cli.config.request import request_line
from omni_cli.errors import ConfigError, InputError
from omni_cli.inputs.text import parse_json, read_text

SINGLE = "request"  # the id of a run's only request


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What was given beside configuration words; None and empty mean not given."""

    prompt: str | None = None
    prompt_file: str | None = None
    messages: str | None = None
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    input: str | None = None
    modalities: str | None = None
    voice: str | None = None
    seed: int | None = None
    out: str | None = None
    resume: str | None = None
    quiet: bool = False

    def tasks(self, loaded: LoadedConfig) -> tuple[Task, ...]:
        """All requests of this command, their files opened and decoded. Raises InputError or ConfigError."""
        self._refuse_contradictions(loaded)
        if self.input is not None:
            return read_tasks(self.input, loaded)
        line = request_line(self._line(), loaded)
        return (make_task(line, loaded, request_id=SINGLE, where="", keep=True),)

    def _settings(self) -> dict[str, Any]:
        modalities = None
        if self.modalities is not None:
            modalities = [name.strip() for name in self.modalities.strip("[]").split(",") if name.strip()]
        return {"modalities": modalities, "voice": self.voice, "seed": self.seed}

    def _content(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "prompt-file": self.prompt_file,
            "messages": self.messages,
            "image": self.images or None,
            "audio": self.audios or None,
            "video": self.videos or None,
        }

    def argv(self) -> list[str]:
        """The options again as words of a command line, for a process of its own; without --out and --resume."""
        single = {**self._content(), "input": self.input, **self._settings(), "modalities": self.modalities}
        words: list[str] = ["--quiet"] if self.quiet else []
        for name, value in single.items():
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            words += [f"--{name}={item}" for item in values]
        return words

    def _refuse_contradictions(self, loaded: LoadedConfig) -> None:
        """An option and an override for one value, or two ways to give the content."""
        set_by_words = {override.key for override in loaded.origins.overrides}
        for name, value in self._settings().items():
            if value is not None and f"request.{name}" in set_by_words:
                raise ConfigError(f"--{name} and request.{name} are both given; keep one, they mean the same")
        given = [
            f"--{name}" for name, value in (*self._content().items(), *self._settings().items()) if value is not None
        ]
        if self.input is not None and given:
            raise ConfigError(f"--input is given beside {', '.join(given)}; put that into the lines of the file")
        texts = [name for name in given if name in ("--prompt", "--prompt-file", "--messages")]
        if len(texts) > 1:
            raise ConfigError(f"{' and '.join(texts)} are both given; keep one")
        for name, folder in (("out", self.out), ("resume", self.resume)):
            if folder == "":
                raise ConfigError(f"--{name} is empty; name a folder")
        if self.out is not None and self.resume is not None:
            raise ConfigError("--out and --resume are both given; --resume writes into the run that it resumes")

    def _line(self) -> dict[str, Any]:
        """The one request of the command line, as a line of a batch would say it."""
        prompt = self.prompt
        if self.prompt_file is not None:
            prompt = read_text(self.prompt_file, "prompt file")
            prompt = prompt.removesuffix("\n").removesuffix("\r")
        return {
            **self._settings(),
            "prompt": prompt if self.messages is None else None,
            "messages": None if self.messages is None else _messages(self.messages),
            "images": list(self.images),
            "audios": list(self.audios),
            "videos": list(self.videos),
        }


def _messages(path: str) -> Any:
    try:
        return parse_json(read_text(path, "messages file"))
    except InputError as error:
        raise InputError(f"messages file {path}: {error}") from error
