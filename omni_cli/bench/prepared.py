"""What every measurement of a recipe begins with: its configuration, its plan, the machine. Starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from omni_cli.bench.machine import machine_facts
from omni_cli.config.load import LoadedConfig, load_config
from omni_cli.plan.build import build_plan
from omni_cli.plan.devices import visible_devices
from omni_cli.plan.model import ExecutionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The ordinary plan for `words`, and what it will be carried by."""

    words: tuple[str, ...]
    now: datetime
    loaded: LoadedConfig
    plan: ExecutionPlan
    machine: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> "Prepared":
        """Raises OmniError for what is refused."""
        now = datetime.now().astimezone()
        loaded, inventory = load_config(words), visible_devices()
        plan = build_plan(loaded, inventory)
        machine = (*machine_facts(now), *(("gpu", device.name) for device in inventory.devices))
        return cls(words=tuple(words), now=now, loaded=loaded, plan=plan, machine=machine)

    def section(self, verb: str, *more: str) -> str:
        """The name of its section in a page: one for each recipe, deployment and whatever else tells it apart."""
        return " ".join(("omni bench", verb, self.loaded.recipe, self.loaded.origins.choices["deploy"], *more))
