"""Packages of environments, and what to type for their ids.

Many packages register their ids when they are imported, and `module:Id` imports them; some need a call, or another id.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import requires
from importlib.util import find_spec
from inspect import signature
from traceback import extract_tb
from types import FunctionType
from typing import NamedTuple

import gymnasium

from ...errors import text_of
from ..agents.adapter import is_joint
from ..base.spec import EnvSpec

REGISTER = {"minatar": ("minatar.gym", "register_envs")}  # functions that do, by module; others have register_envs()
WORLD = '{{"id": "metaworld:Meta-World/MT1", "kwargs": {{"env_name": "reach-v3"}}}}'
AGENTS = r"(?:pettingzoo[./])?(?:([\w.]+)[.:/])?(\w+_v\d+)"  # pattern of a module of PettingZoo, however it is written
OLD_GYM = (
    '{{"id": "shimmy:GymV21Environment-v0", "kwargs": {{"env_id": "{name}", "make_kwargs": '
    '{{"disable_env_checker": true}}}}}}'
)
GYM = "--no-deps shimmy gym==0.25.2 gym-notices"  # gym's own requirements, and its checker, exclude NumPy 2


class Package(NamedTuple):
    """A package of environments.

    Attributes:
        ids: pattern of its ids.
        module: module whose import registers them.
        install: argument of pip.
        form: what to write, with the id as {name} and what is before it as {home}; "" for "module:Id".
        needs: module that must be found; "" for `module`.
    """

    ids: str
    module: str
    install: str
    form: str = ""
    needs: str = ""


HIGHWAY = "(highway|merge|roundabout|parking|intersection|racetrack|u-turn|exit|two-way|lane-keeping)-"
OBJECTIVES = "mo-|deep-sea-treasure|resource-gathering|four-room|fishwood|fruit-tree|water-reservoir|minecart"
ROBOTS = "Fetch|HandReach|HandManipulate|Adroit|AntMaze|PointMaze|FrankaKitchen"
PACKAGES = (
    Package("MiniGrid-|BabyAI-", "minigrid", "minigrid"),
    Package("MinAtar/", "minatar", "minatar"),
    Package("popgym-", "popgym", "popgym"),
    Package(ROBOTS, "gymnasium_robotics", "gymnasium-robotics"),
    Package("Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)", "panda_gym", "panda-gym"),
    Package(HIGHWAY, "highway_env", "highway-env"),
    Package("FlappyBird-", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    Package("(stocks|forex)-v", "gym_anytrading", "gym-anytrading"),
    Package(OBJECTIVES, "mo_gymnasium", "mo-gymnasium"),
    Package("Meta-World/", "metaworld", "metaworld", WORLD),
    Package("dm_control/", "shimmy", "'shimmy[dm-control]'", needs="dm_control"),
    Package("bsuite/", "shimmy", "'shimmy[bsuite]'", needs="bsuite"),
    Package(".*BulletEnv-", "pybullet_envs_gymnasium", "pybullet-envs-gymnasium"),
    Package(".*NoVel-", "rl_zoo3.import_envs", "rl-zoo3"),
    Package("Vizdoom", "vizdoom.gymnasium_wrapper", "vizdoom"),
    Package("MiniWorld-", "miniworld", "miniworld"),
    Package("Crafter", "crafter", f"crafter, pip install {GYM}", OLD_GYM, needs="gym"),
    Package("procgen", "procgen", f"procgen, pip install {GYM}", OLD_GYM),
    Package(f"{AGENTS}$", "pettingzoo", "'rekindle-rl[pettingzoo]'", "pettingzoo/{home}:{name}"),
)


def register(spec: EnvSpec) -> None:
    """Let a package register its ids if it waits for that."""
    module, _, name = spec.id.rpartition(":")
    if not module or is_joint(spec) or name in gymnasium.registry or not _is_found(module):
        return
    home, function = REGISTER.get(module, (module, "register_envs"))
    registers = getattr(import_module(home), function, None)
    if isinstance(registers, FunctionType) and not signature(registers).parameters and name not in gymnasium.registry:
        registers()


def _is_found(module: str) -> bool:
    with suppress(ImportError, ValueError):  # not the name of a module
        return find_spec(module) is not None
    return False


def advice(spec: EnvSpec) -> str:
    """Return what to type in place of an unknown id, or ""."""
    module, _, name = spec.id.rpartition(":")
    if isinstance(getattr(sys.modules.get(module), name, None), type):
        register = f"gymnasium.register('{name}-v0', '{spec.id}')"
        return f"; it is a class: register it with an id, {register} in {module}, and write {spec.id}-v0"
    if call := re.fullmatch(r"([^({]+)\(.*\)", spec.id):
        return f'; write {{"id": "{call[1]}", "kwargs": {{...}}}}'
    if agents := re.fullmatch(AGENTS, spec.id):
        module, name = agents.groups()
    package, name = _known(name)
    if package is None:
        return "".join(f"; write {wanted}" for wanted in [*_spellings(module, name)][:1])
    home = module or "PACKAGE"
    wanted = (package.form or "{module}:{name}").format(module=package.module, home=home, name=name)
    missing = find_spec((package.needs or package.module).partition(".")[0]) is None
    steps = [f"pip install {package.install}"] * missing + [f"write {wanted}"] * (wanted != spec.id)
    return f"; {', and '.join(steps)}" if steps else ""


def _known(name: str) -> tuple[Package | None, str]:
    """Return the known package of an id, and its spelling there.

    Its module may have been written before the id, as `minigrid/MiniGrid-Empty-5x5-v0`.
    """
    for separator in ("", "/", "."):
        home, _, id = name.rpartition(separator) if separator else ("", "", name)
        package = next((package for package in PACKAGES if re.match(package.ids, id)), None)
        if package is not None and (not home or _is_called(package, home)):
            return package, id
    return None, name


def _is_called(package: Package, module: str) -> bool:
    """Return whether a name is another spelling of a package."""
    return package.module.partition(".")[0] in module.replace("-", "_")


def module_advice(spec: EnvSpec) -> str:
    """Return what to type in place of a missing module, or ""."""
    module, _, name = spec.id.rpartition(":")
    package, _ = _known(name)
    if package is not None and _is_called(package, module) and not _is_found(module):
        return advice(spec)
    if "-" in module and _is_found(imported := module.replace("-", "_")):
        return f"; write {imported}:{name}"
    return ""


def _spellings(module: str, name: str) -> Iterator[str]:
    """Yield this name in other namespaces, and behind other modules."""
    prefix = f"{module}:" if module else ""
    yield from (f"{prefix}{id}" for id in gymnasium.registry if id.endswith(f"/{name}"))
    package = module or name.rpartition("/")[0]
    for home in (package, f"{package}.envs"):
        if home not in sys.modules and _is_found(home):
            yield f"{home}:{name}"


def cure(spec: EnvSpec, error: Exception) -> str:
    """Return what to do about an error of a constructor, or ""."""
    if "must inherit from" in text_of(error):
        if "vector" in text_of(error).lower():
            return f"; a vector environment is written vector/{spec.id}, or register the one of which it has several"
        name = spec.id.rpartition(":")[2]
        return (
            f"; if it is registered with old Gym, pip install {GYM}, and write {OLD_GYM.format(name=name)}; otherwise "
            "derive it from gymnasium.Env, with reset(*, seed, options) -> (observation, info) and step(action) -> "
            "(observation, reward, terminated, truncated, info)"
        )
    if isinstance(error, AssertionError) and "mujoco.mjt" in (extract_tb(error.__traceback__)[-1].line or ""):
        return "; newer versions of MuJoCo compare its constants otherwise: pip install 'mujoco<3.9'"
    if "dm_control/" in spec.id and "MjModel" in text_of(error):
        needs = next((need for need in requires("dm_control") or () if re.match(r"mujoco\W", need)), "mujoco")
        return f"; dm_control reads the structures of one MuJoCo: pip install '{needs.replace('>=', '~=')}'"
    return ""
