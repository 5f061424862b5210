"""Which replica runs on which device, with what share of its memory. Devices are positions in the visible list."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from omni_cli.config.report import Problem
from omni_cli.config.schema import DeployConfig, Devices, StageDeployConfig
from omni_cli.plan.devices import Inventory
from stages.models.registry import FamilyContract, StageContract

# What the planner leaves of a device's memory to the CUDA contexts of its processes.
_AUTO_SHARE = 0.9
_LEAST_SHARE = 0.01
_CPU: Devices = ((),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One stage: for each replica its devices; `memory_fraction` of each of them, 0 on the CPU."""

    replicas: Devices
    memory_fraction: float


def place(
    stages: Sequence[str], deploy: DeployConfig, family: FamilyContract, inventory: Inventory
) -> tuple[Mapping[str, Placement], tuple[Problem, ...]]:
    """Places the deployed stages: what the configuration says, and the planner's choice where it says nothing."""
    settings = {name: deploy.stage(name) for name in stages}
    problems = [p for name in stages for p in _device_problems(name, settings[name], family, inventory)]
    if problems:
        return {}, tuple(problems)
    replicas = _assign(settings, family, inventory)
    fractions = {name: settings[name].memory_fraction for name in stages if _devices_of(replicas[name])}
    problems += _over_committed(replicas, fractions)
    placements = {
        name: Placement(replicas=replicas[name], memory_fraction=_fraction(name, replicas, fractions, family))
        for name in stages
    }
    if not problems:
        problems += _nothing_left(placements, fractions)
    return placements, tuple(problems)


def _device_problems(
    name: str, setting: StageDeployConfig, family: FamilyContract, inventory: Inventory
) -> Iterator[Problem]:
    if setting.devices is None:
        return
    key = f"deploy.stages.{name}.devices"
    yield from replica_problems(name, setting)
    if len({bool(replica) for replica in setting.devices}) > 1:
        yield Problem(key=key, message="mixes replicas on the CPU and on devices; use one kind")
    seen = {device for replica in setting.devices for device in replica}
    for device in sorted(device for device in seen if device >= len(inventory)):
        yield Problem(key=key, message=f"there is no device {device}; {_visible(inventory)}")
    for replica in setting.devices:
        if len(replica) != len(set(replica)):
            yield Problem(key=key, message=f"replica {list(replica)} names a device twice")
        elif len(replica) > _most_devices(family.stages[name], len(replica)):
            split = ",".join(f"[{device}]" for device in replica)
            message = (
                f"{list(replica)} is one replica over {len(replica)} devices, and `{name}` of family `{family.name}` "
                f"offers {_offer(family.stages[name])}; [{split}] is {len(replica)} replicas"
            )
            yield Problem(key=key, message=message)


def replica_problems(name: str, setting: StageDeployConfig) -> Iterator[Problem]:
    """Numbers of replicas that contradict each other, or none, wherever they are."""
    if setting.devices is None:
        return
    key = f"deploy.stages.{name}.devices"
    if setting.replicas is not None and len(setting.devices) not in (1, setting.replicas):
        message = (
            f"is {setting.replicas}, but {key} lists {len(setting.devices)} replicas; "
            "leave one of the two out, or list one place for all"
        )
        yield Problem(key=f"deploy.stages.{name}.replicas", message=message)
    if not setting.devices:
        yield Problem(key=key, message="has no replica; [[0]] is one on device 0, cpu is one on the CPU")


def _most_devices(stage: StageContract, asked: int) -> int:
    return asked if stage.tensor_parallel else 2 if stage.guidance_parallel else 1


def _offer(stage: StageContract) -> str:
    return "a second device, for negative prompts, and no more" if stage.guidance_parallel else "no tensor parallelism"


def _visible(inventory: Inventory) -> str:
    count = len(inventory)
    found = "no GPU is visible" if not count else "visible is 0" if count == 1 else f"visible are 0 to {count - 1}"
    return f"{found} ({inventory.note})" if inventory.note else found


def _assign(
    settings: Mapping[str, StageDeployConfig], family: FamilyContract, inventory: Inventory
) -> dict[str, Devices]:
    """The devices of every replica. What is left open goes, the neediest first, to the device with the least on it."""
    counts = {name: setting.replicas or 1 for name, setting in settings.items()}
    chosen: dict[str, Devices] = {
        name: setting.devices * counts[name] if len(setting.devices) == 1 else setting.devices
        for name, setting in settings.items()
        if setting.devices is not None
    }
    if not inventory or not family.has_weights:
        return {name: chosen.get(name, _CPU * counts[name]) for name in settings}
    load = dict.fromkeys(range(len(inventory)), 0.0)
    for name, replicas in chosen.items():
        for device in _devices_of(replicas):
            load[device] += family.stages[name].memory_share
    for name in sorted(settings, key=lambda name: -family.stages[name].memory_share):
        while name not in chosen or len(chosen[name]) < counts[name]:
            device = min(load, key=lambda device: (load[device], device))
            load[device] += family.stages[name].memory_share
            chosen[name] = (*chosen.get(name, ()), (device,))
    return {name: chosen[name] for name in settings}


def _devices_of(replicas: Devices) -> tuple[int, ...]:
    """Every device once for each replica that uses it."""
    return tuple(device for replica in replicas for device in replica)


def _fraction(
    name: str, replicas: Mapping[str, Devices], fractions: Mapping[str, float | None], family: FamilyContract
) -> float:
    """The given fraction; else the stage's share, by need, of what the given ones leave on its fullest device."""
    if name not in fractions:
        return 0.0
    given = fractions[name]
    if given is not None:
        return given
    return min(_share(name, device, replicas, fractions, family) for device in _devices_of(replicas[name]))


def _share(
    name: str,
    device: int,
    replicas: Mapping[str, Devices],
    fractions: Mapping[str, float | None],
    family: FamilyContract,
) -> float:
    taken = need = 0.0
    for other, fraction in fractions.items():
        count = _devices_of(replicas[other]).count(device)
        if fraction is None:
            need += count * family.stages[other].memory_share
        else:
            taken += count * fraction
    share = family.stages[name].memory_share / need
    return int(max(0.0, _AUTO_SHARE - taken) * share * 1000) / 1000  # rounded down: the sum stays below 1


def _over_committed(replicas: Mapping[str, Devices], fractions: Mapping[str, float | None]) -> Iterator[Problem]:
    for device in sorted({device for name in fractions for device in _devices_of(replicas[name])}):
        rows = [
            (f"{name}.{index}", fraction)
            for name, fraction in fractions.items()
            for index, replica in enumerate(replicas[name])
            if device in replica
        ]
        total = sum(fraction for _, fraction in rows if fraction is not None)
        if total > 1 + 1e-9:
            table = "".join(f"\n      {n:<14} {'auto' if f is None else format(f, '.3f')}" for n, f in rows)
            worst = max(
                fractions, key=lambda name: fractions[name] or 0.0 if device in _devices_of(replicas[name]) else -1
            )
            message = f"the fractions on device {device} add up to {total:.3f}, more than 1:{table}\n      lower one"
            yield Problem(key=f"deploy.stages.{worst}.memory_fraction", message=message)


def _nothing_left(placements: Mapping[str, Placement], fractions: Mapping[str, float | None]) -> Iterator[Problem]:
    for name, fraction in fractions.items():
        if fraction is None and placements[name].memory_fraction < _LEAST_SHARE:
            devices = sorted(set(_devices_of(placements[name].replicas)))
            message = (
                f"is left to the planner, but the other stages take all of device {', '.join(map(str, devices))} "
                f"({_AUTO_SHARE} of it can be given away); set it, lower another one, or choose another device"
            )
            yield Problem(key=f"deploy.stages.{name}.memory_fraction", message=message)
