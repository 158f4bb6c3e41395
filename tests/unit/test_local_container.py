"""Plan of a container's root: which directories are made anew, and what is bound where."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.container import Mount, Step, plan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small machine."""
    root = tmp_path / "machine"
    for directory in ("etc/ssl", "usr/bin", "usr/local/lib", "run", "dev/queue", "var/log"):
        (root / directory).mkdir(parents=True)
    for file in ("etc/passwd", "etc/hosts", "usr/bin/bash"):
        (root / file).touch()
    (root / "bin").symlink_to("usr/bin")
    (root / "var/run").symlink_to("/run")
    (root / "volume").mkdir()
    (root / "script").touch()
    return root


def steps(root: Path, *mounts: tuple[str, str]) -> dict[str, Step]:
    """What each path becomes at last."""
    made = [Mount(str(root / source) if source else "", path) for source, path in mounts]
    return {step.path: step for step in plan(made, root)}


def test_without_mounts_the_root_is_like_the_machine(root: Path) -> None:
    planned = steps(root)
    assert planned["/etc"] == Step("bind", "/etc", str(root / "etc"), optional=True)
    assert planned["/bin"] == Step("link", "/bin", "usr/bin")
    assert planned["/script"].action == "bind"
    assert "/etc/passwd" not in planned


def test_a_mount_at_a_new_place_in_the_root_is_bound_there(root: Path) -> None:
    assert steps(root, ("volume", "/models"))["/models"] == Step("bind", "/models", str(root / "volume"))


def test_a_directory_on_the_way_is_made_anew_with_everything_else_in_it(root: Path) -> None:
    planned = steps(root, ("script", "/etc/hccn.conf"))
    assert planned["/etc"].action == "directory"
    assert planned["/etc/hccn.conf"].source == str(root / "script")
    assert {path for path in planned if path.startswith("/etc/")} == {"/etc/hccn.conf", "/etc/hosts", "/etc/passwd", "/etc/ssl"}
    assert planned["/usr"].action == "bind"


def test_only_directories_on_the_way_are_made_anew(root: Path) -> None:
    planned = steps(root, ("volume", "/usr/local/Ascend/driver/tools"))
    assert [planned[path].action for path in ("/usr", "/usr/local", "/usr/local/Ascend", "/usr/local/Ascend/driver")] == [
        "directory"
    ] * 4
    assert planned["/usr/bin"].action == "bind"
    assert planned["/usr/local/lib"].action == "bind"


def test_a_place_that_the_machine_has_needs_no_directory_made_anew(root: Path) -> None:
    planned = steps(root, ("volume", "/dev/queue"))
    assert planned["/dev"] == Step("bind", "/dev", str(root / "dev"), optional=True)
    assert planned["/dev/queue"] == Step("bind", "/dev/queue", str(root / "volume"))


def test_a_file_over_a_directory_of_the_machine_replaces_it(root: Path) -> None:
    planned = steps(root, ("script", "/etc/ssl"))
    assert planned["/etc"].action == "directory"
    assert planned["/etc/ssl"].source == str(root / "script")


def test_symbolic_links_of_the_machine_are_followed(root: Path) -> None:
    planned = steps(root, ("volume", "/var/run/secrets/kubernetes.io/serviceaccount"))
    assert planned["/run/secrets/kubernetes.io/serviceaccount"].action == "bind"
    assert planned["/var"].action == "bind"


def test_a_loop_of_symbolic_links_is_an_error(root: Path) -> None:
    (root / "a").symlink_to("/b")
    (root / "b").symlink_to("/a")
    with pytest.raises(OSError, match="too many symbolic links"):
        steps(root, ("volume", "/a/x"))


def test_a_mount_inside_another_is_made_in_it_after_it(root: Path) -> None:
    planned = plan(
        [Mount(str(root / "script"), "/models/sub/file"), Mount(str(root / "volume"), "/models", read_only=True)], root
    )
    order = [(step.action, step.path) for step in planned if step.path.startswith("/models")]
    assert order == [
        ("directory", "/models"),
        ("bind", "/models"),
        ("directory", "/models/sub"),
        ("file", "/models/sub/file"),
        ("bind", "/models/sub/file"),
    ]


def test_a_read_only_mount_stays_read_only(root: Path) -> None:
    planned = plan([Mount(str(root / "volume"), "/models", read_only=True)], root)
    assert [step.read_only for step in planned if step.path == "/models"] == [False, True]


def test_an_empty_source_is_an_empty_directory(root: Path) -> None:
    assert steps(root, ("", "/workspace/deep"))["/workspace/deep"] == Step("directory", "/workspace/deep")


def test_a_volume_can_not_be_left_out_but_a_part_of_the_machine_can(root: Path) -> None:
    planned = steps(root, ("volume", "/models"))
    assert not planned["/models"].optional
    assert planned["/etc"].optional
