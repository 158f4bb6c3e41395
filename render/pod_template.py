"""What a declaration adds to a rendered pod template."""

from __future__ import annotations

from typing import Any

from models.base import dump
from models.role import PodTemplatePatch

Path = tuple[str | int, ...]
"""Keys and list indexes from the top of the patch"""

CONTAINERS = ("initContainers", "containers")
NAMED_BY = {
    **dict.fromkeys(CONTAINERS, "name"),
    "env": "name",
    "ports": "name",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of a PodSpec whose items have an identity -> the field that it is in"""

Overridden = tuple[Path, Any, Any]


def patched(template: dict[str, Any], patch: PodTemplatePatch) -> dict[str, Any]:
    """``template`` with what ``patch`` adds: maps key by key, named items by their names, other lists of maps appended to."""
    merged: dict[str, Any] = _merged(template, dump(patch), (), [])
    return merged


def overridden(template: dict[str, Any], patch: PodTemplatePatch) -> list[Overridden]:
    """What ``patch`` would change instead of adding: its place in the patch, the rendered value, the patch's value."""
    found: list[Overridden] = []
    _merged(template, dump(patch), (), found)
    return found


def _merged(rendered: Any, patch: Any, path: Path, found: list[Overridden]) -> Any:
    if isinstance(rendered, dict) and isinstance(patch, dict):
        both = {key: _merged(rendered[key], patch[key], (*path, key), found) for key in patch if key in rendered}
        return {**rendered, **patch, **both}
    if _is_list_of_maps(rendered) and _is_list_of_maps(patch):
        return _merged_items(rendered, patch, path, found)
    if rendered != patch:
        found.append((path, rendered, patch))
    return patch


def _merged_items(rendered: list[Any], patch: list[Any], path: Path, found: list[Overridden]) -> list[Any]:
    identity = NAMED_BY.get(str(path[-1]))
    places = {item.get(identity): index for index, item in enumerate(rendered)} if identity else {}
    merged = list(rendered)
    for index, item in enumerate(patch):
        place = places.get(item.get(identity)) if identity in item else None
        if place is None:
            merged += [item] if item not in rendered else []
        elif path[-1] in CONTAINERS:
            merged[place] = _merged(rendered[place], item, (*path, index), found)
        else:  # the rest of these say one thing each: a second value or source would not add to the first
            merged[place] = item
            found += [((*path, index), rendered[place], item)] if item != rendered[place] else []
    return merged


def _is_list_of_maps(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
