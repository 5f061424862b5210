"""From words to a validated configuration: composes, finds the family, checks every key and value, reports all at once.

Must not ask whether the values fit together or the machine: that is the planner's business.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from omni_cli.config.files import KeyPath
from omni_cli.config.keys import KeyTree
from omni_cli.config.library import RECIPE
from omni_cli.config.nearest import nearest
from omni_cli.config.report import Problem, located, report, worded
from omni_cli.config.schema import OmniConfig
from omni_cli.errors import ConfigError
from stages.models import registry
from stages.models.registry import FamilyContract

if TYPE_CHECKING:
    from omni_cli.config.compose import Composition

REQUEST_EDGE = "request"
T = TypeVar("T")
Contracts = Callable[[str], FamilyContract]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """`config` is valid by the schema. `options` is the family's own dataclass under the root node `options_node`.

    `recipe` and `pipeline` are names for people: what was chosen. `origins` says where each value comes from.
    """

    config: OmniConfig
    family: FamilyContract
    options: Any
    options_node: str
    recipe: str
    pipeline: str
    origins: "Composition"
    keys: KeyTree


def load_config(
    words: Sequence[str], *, recipe: str | None = None, contracts: Contracts = registry.contract
) -> LoadedConfig:
    """Raises ConfigError that lists every problem with its key, its place and the nearest valid key."""
    from omni_cli.config.compose import compose  # brings Hydra, which no `--help` shall wait for

    composition = compose(words, recipe)
    values = dict(composition.values)
    family = _family(composition, contracts)
    node = registry.options_node(family.name)
    tree = key_tree(family, node, values)
    problems = [unknown_key(family, tree, key) for key in tree.unknown(values)]
    own = values.pop(node, None) if family.options else None
    known_roots = {name: value for name, value in values.items() if name in OmniConfig.model_fields}
    config, found = validated(OmniConfig, known_roots, ())
    problems += found
    options, found = family_options(family, own or {}, (node,))
    problems += found
    if problems or config is None:
        raise ConfigError(report(located(problems, composition), "the configuration"))
    return LoadedConfig(
        config=config,
        family=family,
        options=options,
        options_node=node,
        recipe=composition.choices.get(RECIPE, composition.choices["pipeline"]),
        pipeline=composition.choices["pipeline"],
        origins=composition,
        keys=tree,
    )


def _family(composition: "Composition", contracts: Contracts) -> FamilyContract:
    pipeline = composition.values.get("pipeline")
    name = pipeline.get("family") if isinstance(pipeline, Mapping) else None
    try:
        return contracts(str(name))
    except KeyError:
        close = nearest(str(name), registry.FAMILIES)
        hint = f"; the nearest is `{close}`" if close else ""
        message = f"there is no model family `{name}`{hint}; there are: {', '.join(registry.FAMILIES)}"
        problem = Problem(key="pipeline.family", message=message)
        raise ConfigError(report(located([problem], composition), "the configuration")) from None


def key_tree(family: FamilyContract, node: str, values: Mapping[str, Any]) -> KeyTree:
    """All keys that make sense for a family: stage names, producers and outputs are those of its contract."""
    stages = tuple(family.stages)
    outputs = tuple(dict.fromkeys(output for stage in family.stages.values() for output in stage.outputs))

    def names(path: KeyPath) -> tuple[str, ...] | None:
        match path:
            case ("pipeline" | "deploy", "stages"):
                return stages
            case ("pipeline", "stages", stage, "inputs") if stage in family.stages:
                return tuple(family.stages[stage].inputs)
            case ("deploy", "stages", stage, "inputs") if stage in family.stages:
                producers = tuple(family.stages[stage].inputs)
                return producers or ((REQUEST_EDGE,) if family.media else ())
            case ("pipeline", "outputs"):
                return outputs
            case ("request", "sampling"):
                return tuple(name for name, stage in family.stages.items() if stage.sampled)
            case _:
                return None

    roots: dict[str, Any] = {name: field.annotation for name, field in OmniConfig.model_fields.items()}
    if family.options is not None:
        roots[node] = family.options
    return KeyTree(roots=roots, names=names)


def unknown_key(family: FamilyContract, tree: KeyTree, key: str) -> Problem:
    close = tree.suggest(key) or nearest(key, (RECIPE,))  # which is chosen and no node
    match key.split("."):
        case ["pipeline" | "deploy" as root, "stages", stage, *_] if stage not in family.stages:
            other = nearest(stage, family.stages)
            hint = f"; the nearest is `{close if close and other else other}`" if other else ""
            message = f"family `{family.name}` has no stage `{stage}`{hint}; it has {', '.join(family.stages)}"
            return Problem(key=f"{root}.stages.{stage}" if root == "pipeline" else key, message=message)
    hint = f"; the nearest is `{close}`" if close else "; `omni plan --explain` lists the keys"
    return Problem(key=key, message=f"unknown key{hint}")


def family_options(
    family: FamilyContract, values: Mapping[str, Any], path: KeyPath
) -> tuple[Any | None, list[Problem]]:
    """The family's own dataclass from its node's values; None for a family that has none."""
    if family.options is None:
        return None, []
    return validated(family.options, values, path)


@cache  # to make one takes ten times as long as a whole request of the server
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def validated(kind: type[T], values: Any, path: KeyPath) -> tuple[T | None, list[Problem]]:
    """The values as this type, or None and what is wrong with them. Unknown keys are left to `KeyTree`."""
    try:
        adapter: TypeAdapter[T] = _adapter(cast("Any", kind))
        return adapter.validate_python(values), []
    except ValidationError as error:
        wrong = [d for d in error.errors(include_url=False) if d["type"] not in _UNKNOWN_KEY]
        return None, [_problem(detail, path) for detail in wrong]


_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def _problem(detail: ErrorDetails, path: KeyPath) -> Problem:
    key = ".".join((*path, *(str(part) for part in detail["loc"])))
    if detail["type"] in ("missing", "value_error") and not isinstance(detail["input"], str | int | float | list):
        return Problem(key=key, message=worded(detail))
    return Problem(key=key, message=f"{worded(detail)}; got {_shown(detail['input'])}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
