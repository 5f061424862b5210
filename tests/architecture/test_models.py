"""What crosses a process boundary is frozen, slotted and named; what configures is frozen, closed and described."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterator

import pytest
from pydantic import BaseModel, TypeAdapter

from omni_cli.config.request import request_line  # noqa: F401  a line of a batch is a model, too
from omni_cli.config.sampling import ConfigModel
from omni_cli.config.schema import OmniConfig
from omni_cli.plan.model import PlanModel
from stages.models import registry

MESSAGES = (
    "stages.config",
    "stages.messages",
    "stages.events",
    "stages.payload",
    "stages.lease",
    "stages.schedulers.base",
    "stages.runners.base",
    "omni_cli.runtime.events",
)


def classes(module: str) -> Iterator[type]:
    """The classes that a module defines, but for interfaces."""
    for found in vars(importlib.import_module(module)).values():
        if inspect.isclass(found) and found.__module__ == module and not getattr(found, "_is_protocol", False):
            yield found


def subclasses(base: type) -> Iterator[type]:
    for found in base.__subclasses__():
        yield found
        yield from subclasses(found)


@pytest.mark.parametrize("module", MESSAGES)
def test_a_message_is_frozen_slotted_and_takes_its_fields_by_name(module):
    found = list(classes(module))
    assert found
    for message in found:
        assert dataclasses.is_dataclass(message), message
        assert message.__dataclass_params__.frozen, message
        assert "__slots__" in vars(message), message
        assert all(field.kw_only for field in dataclasses.fields(message)), message


@pytest.mark.parametrize("base", [ConfigModel, PlanModel], ids=lambda base: base.__name__)
def test_a_model_is_frozen_and_refuses_what_it_does_not_know(base):
    found: list[type[BaseModel]] = list(subclasses(base))
    assert len(found) >= 5
    for model in found:
        assert model.model_config["frozen"], model
        assert model.model_config["extra"] == "forbid", model
        assert inspect.getdoc(model), model


def test_every_key_of_the_configuration_is_described():
    models = list(subclasses(ConfigModel))
    assert OmniConfig in models
    for model in models:
        assert [name for name, field in model.model_fields.items() if not field.description] == [], model


@pytest.mark.parametrize("family", [name for name in registry.FAMILIES if registry.contract(name).options])
def test_the_options_of_a_family_are_frozen_closed_and_described(family):
    options = registry.contract(family).options
    assert dataclasses.is_dataclass(options)
    assert options.__dataclass_params__.frozen
    described: set[str] = set()
    for base in filter(dataclasses.is_dataclass, options.__mro__):
        schema = TypeAdapter(base).json_schema()
        assert all(node["additionalProperties"] is False for node in (schema, *schema.get("$defs", {}).values())), base
        described |= {name for name, key in schema["properties"].items() if key.get("description")}
    assert {field.name for field in dataclasses.fields(options)} - described == set()
