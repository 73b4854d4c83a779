"""``rekindle plugins``: what installed packages add, with origin and version.

The exit status is 1 if one cannot be used.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Annotated

from ....plugins import Plugin
from ....tasks.envs.base.spec import OF_ENVIRONMENTS
from ....tasks.networks.own_encoders import OF_ENCODERS
from ....tasks.registry import TASKS
from ...engine.views import View
from ...methods import OF_SAMPLERS, OF_SCHEDULERS, OF_SINKS
from ..output import tables
from ..output.terminal import new_console, note, print_json
from . import options

REGISTRIES = (TASKS, OF_ENVIRONMENTS, OF_SCHEDULERS, OF_SAMPLERS, OF_SINKS, OF_ENCODERS)


class PluginsView(View):
    """Objects that installed packages offer."""

    plugins: Annotated[Sequence[Plugin], "plugins"]


def plugins(arguments: argparse.Namespace) -> int:
    """Import and print each plugin; fail if one cannot be used."""
    plugins = [plugin for registry in REGISTRIES for plugin in registry.plugins()]
    status = options.FAILED if any(plugin.error for plugin in plugins) else 0
    if arguments.json:
        print_json(PluginsView(plugins=plugins))
        return status
    out = new_console()
    if not plugins:
        note(out, f"no installed package has entry points of {', '.join(registry.group for registry in REGISTRIES)}")
        return status
    columns = ("kind", "name", "package", "version", "target")
    out.print(tables.rows_table("plugins", [plugin._asdict() for plugin in plugins], columns))
    for plugin in plugins:
        if plugin.error:
            note(out, f"{plugin.kind} {plugin.name}: {plugin.error}")
    return status
