"""From the words of a command line to one plain, resolved dict: Hydra's compose API as a pure function.

Every interpolation is resolved here, once, in the parent. The origin of each value comes from composing the same files
a second time with every value replaced by the place where it is written, so that it follows the same precedence.
Whether a key or value is valid is the schema's business.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from omni_cli.config.files import KeyPath, YamlFile, read_yaml, shown
from omni_cli.config.library import GROUPS, RECIPE, Library
from omni_cli.config.overrides import Override, classify
from omni_cli.config.recipes import RecipeFile, recipe_chain
from omni_cli.config.report import COMMAND_LINE, SCHEMA_DEFAULT, Problem, located, report
from omni_cli.config.schema import takes_text
from omni_cli.errors import ConfigError

_lock = threading.Lock()  # Hydra's ConfigStore is one per process; compositions take turns


@dataclass(frozen=True)
class Composition:
    """The resolved values, and enough to say where each comes from. `choices` names the file of each group."""

    values: Mapping[str, Any]
    choices: Mapping[str, str]
    sources: "Sources"
    overrides: tuple[Override, ...]

    @cached_property
    def _places(self) -> Any:
        return self.sources.places(self.overrides)

    def where(self, key: str) -> str:
        """`file:line`, `command line` or `schema default` for a dotted key; of a map, of its first value."""
        node = self._places
        for part in key.split("."):
            if not isinstance(node, Mapping):
                break
            if part not in node:
                return SCHEMA_DEFAULT
            node = node[part]
        while isinstance(node, Mapping):
            node = next(iter(node.values()), SCHEMA_DEFAULT)
        place = node[0] if isinstance(node, list) else node
        return str(place) if place is not None else SCHEMA_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All files that may take part in one composition, by group and name. `broken` are those that cannot be read."""

    primary: YamlFile
    groups: Mapping[tuple[str, str], YamlFile]
    broken: Mapping[tuple[str, str], ConfigError]
    recipes: tuple[RecipeFile, ...]

    @classmethod
    def read(cls, library: Library, recipe: str | None) -> "Sources":
        groups: dict[tuple[str, str], YamlFile] = {}
        broken: dict[tuple[str, str], ConfigError] = {}
        for group in GROUPS:
            for name, path in library.choices(group).items():
                try:
                    groups[group, name] = read_yaml(path)
                except ConfigError as error:
                    broken[group, name] = error
        chain = recipe_chain(library, recipe) if recipe else ()
        return cls(primary=read_yaml(library.primary), groups=groups, broken=broken, recipes=chain)

    def all(self) -> Iterator[tuple[str | None, str, YamlFile]]:
        """(group, name, file) of each, as Hydra is to know them."""
        yield None, "config", self.primary
        for (group, name), file in self.groups.items():
            yield group, name, file
        for recipe in self.recipes:
            yield RECIPE, recipe.name, recipe.file

    def places(self, overrides: Sequence[Override]) -> Any:
        """The composition of the same files with the place of each value instead of the value."""
        words = [
            item.for_hydra(None if item.kind == "choice" else _everywhere(item.value, COMMAND_LINE))
            for item in overrides
        ]
        config = _compose(self, words, shadow=True)
        return {str(key): _container(config[key]) for key in config if key != "hydra"}


def compose(words: Sequence[str], recipe: str | None = None, library: Library | None = None) -> Composition:
    """Composes the overrides `words` over the recipe and the groups.

    `recipe` is a name or a file, as in `recipe=...`. Raises ConfigError with every problem that can be seen at this
    stage.
    """
    given = [*words, *([f"{RECIPE}={recipe}"] if recipe is not None else [])]
    overrides, problems = classify(given, takes_text)
    if problems:
        raise ConfigError(report(problems, "the command line"))
    library = library or Library.of()
    chosen = {item.key: item for item in overrides if item.kind == "choice"}
    name = str(chosen[RECIPE].value) if RECIPE in chosen else None
    for group in set(chosen) - {RECIPE}:
        library.find(group, str(chosen[group].value), f"{group} ({COMMAND_LINE})")
    sources = Sources.read(library, name)
    _refuse_hydra_nodes(sources)
    # Hydra knows the recipe by the name under which the chain registered it (a file has no name of its own).
    hydra_overrides = tuple(
        Override(text=item.text, kind="choice", key=RECIPE, value=sources.recipes[0].name)
        if item.key == RECIPE
        else item
        for item in overrides
    )
    config = _compose(sources, [item.for_hydra() for item in hydra_overrides], shadow=False)
    choices = {group: str(config.hydra.runtime.choices[group]) for group in GROUPS}
    if sources.recipes:
        choices[RECIPE] = sources.recipes[0].title
    composition = Composition(values={}, choices=choices, sources=sources, overrides=hydra_overrides)
    unresolved = [problem for key in config if key != "hydra" for problem in _unresolved(config, key, (str(key),))]
    if unresolved:
        raise ConfigError(report(located(unresolved, composition), "the configuration"))
    values = {str(key): _container(config[key]) for key in config if key != "hydra"}
    return Composition(values=values, choices=choices, sources=sources, overrides=hydra_overrides)


def _compose(sources: Sources, words: list[str], *, shadow: bool) -> DictConfig:
    with _lock, _registered(sources, shadow=shadow), initialize(config_path=None, job_name="omni", version_base="1.3"):
        try:
            return hydra_compose("config", words, return_hydra_config=True)
        except MissingConfigException as error:
            raise _missing(sources, str(error.missing_cfg_file or "")) or _hydra_error(error) from None
        except (HydraException, OmegaConfBaseException) as error:
            raise _hydra_error(error) from None


@contextmanager
def _registered(sources: Sources, *, shadow: bool) -> Iterator[None]:
    store = ConfigStore.instance()
    saved = store.repo
    store.repo = {"hydra": saved["hydra"], "_dummy_empty_config_.yaml": saved["_dummy_empty_config_.yaml"]}
    try:
        for group, name, file in sources.all():
            node = _shadow(file) if shadow else dict(file.data)
            folder, _, leaf = name.rpartition("/")
            group_path = "/".join(part for part in (group, folder) if part) or None
            package = file.package or ("_global_" if group == RECIPE else group)
            store.store(group=group_path, name=leaf, node=node, package=package, provider=shown(file.path))
        yield
    finally:
        store.repo = saved


def _shadow(file: YamlFile) -> dict[str, Any]:
    def places(node: Any, path: KeyPath) -> Any:
        if isinstance(node, Mapping) and node:
            return {key: places(value, (*path, key)) for key, value in node.items()}
        # Braces would be an interpolation if a folder were called `${x}`.
        place = file.where(path).replace("${", "$ {")
        return [place] if isinstance(node, list) else {} if isinstance(node, Mapping) else place

    return {key: value if key == "defaults" else places(value, (key,)) for key, value in file.data.items()}


def _everywhere(value: Any, place: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _everywhere(item, place) for key, item in value.items()}
    return [place] if isinstance(value, list) else place


def _container(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if isinstance(value, DictConfig | ListConfig) else value


def _unresolved(node: DictConfig | ListConfig, key: Any, path: KeyPath) -> list[Problem]:
    """Every value below `node[key]` that is `???` or an interpolation that leads nowhere."""
    dotted = ".".join(path)
    try:
        if OmegaConf.is_missing(node, key):
            return [Problem(key=dotted, message="is ??? (must be set); give it a value, as in " + dotted + "=VALUE")]
        value = node[key]
    except OmegaConfBaseException as error:
        return [Problem(key=dotted, message=f"cannot be resolved: {str(error).splitlines()[0]}")]
    if isinstance(value, DictConfig):
        children: Sequence[Any] = list(value)
    elif isinstance(value, ListConfig):
        children = range(len(value))
    else:
        return []
    return [problem for child in children for problem in _unresolved(value, child, (*path, str(child)))]


def _refuse_hydra_nodes(sources: Sources) -> None:
    for _, _, file in sources.all():
        if "hydra" in file.data:
            where = file.where(("hydra",))
            raise ConfigError(f"hydra ({where}): Hydra's own settings have no effect here and are refused; remove it")


def _missing(sources: Sources, config: str) -> ConfigError | None:
    """The error for a file that a defaults list names: its own if it is broken, else who asks and what there is."""
    group, _, name = config.partition("/")
    if (group, name) in sources.broken:
        return sources.broken[group, name]
    if group not in GROUPS:
        return None
    there = sorted(found for kind, found in sources.groups if kind == group)
    asked = [file.where(("defaults",)) for _, _, file in sources.all() if name in str(file.data.get("defaults", ""))]
    return ConfigError(
        f"{asked[0] if asked else 'defaults'}: there is no {group} `{name}`; there are: {', '.join(there)}"
    )


def _hydra_error(error: Exception) -> ConfigError:
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    return ConfigError(f"the configuration cannot be composed: {' '.join(lines[:2])}")
