"""Building what is missing, with a ``go`` that only pretends."""

from __future__ import annotations

from pathlib import Path

import pytest

from local import toolchain
from local.errors import LocalError
from local.toolchain import CLUSTER_TOOLS, VOLCANO, Tool, directory, ensure

ETCD = next(tool for tool in CLUSTER_TOOLS if tool.module == "etcd")
PRETENDING_GO = """#!/bin/bash
echo "$@" >> "$GO_CALLS"
if [ "$1" = list ]; then echo "$GO_UPSTREAM"; fi
if [ "$1 $2" = "mod edit" ]; then find "${3##*=}" -type f >> "$GO_CALLS"; fi
if [ "$1" = build ]; then
  if [ -n "$GO_FAILS" ]; then echo "undefined: something" >&2; exit 1; fi
  while [ "$1" != -o ]; do shift; done
  echo program > "$2/etcd"
fi
"""


@pytest.fixture(autouse=True)
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File in which each call of ``go`` is written down."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "go").write_text(PRETENDING_GO)
    (tmp_path / "bin" / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("GO_UPSTREAM", str(tmp_path / "upstream"))
    monkeypatch.setenv("GO_FAILS", "")
    return tmp_path / "calls"


def test_a_program_is_built_once_and_found_from_then_on(go: Path) -> None:
    said: list[str] = []
    folders = ensure([ETCD], said.append)
    assert (folders["etcd"] / "etcd").read_text() == "program\n"
    assert not list(folders["etcd"].parent.glob("*.building-*"))
    assert any("[1/1] built etcd" in line for line in said)
    calls = go.read_text()
    assert ensure([ETCD], said.append) == folders
    assert go.read_text() == calls


def test_a_module_that_lacks_a_file_is_built_from_a_copy_that_has_it(go: Path, tmp_path: Path) -> None:
    package = tmp_path / "upstream" / "pkg" / "apis" / "scheduling" / "v1beta1"
    package.mkdir(parents=True)
    (package / "labels.go").write_text("package v1beta1")
    package.chmod(0o555)  # as in Go's cache
    ensure([VOLCANO], print)
    edit, *files, build = go.read_text().splitlines()[-4:]
    copy = Path(edit.removeprefix("mod edit -replace=volcano.sh/apis=").split()[0])
    names = {Path(file).relative_to(copy / "pkg/apis/scheduling/v1beta1").name for file in files}
    assert names == {"labels.go", "queue_allocation_gate.go"}
    assert f"-modfile {copy.parent}/go.mod" in build
    assert not copy.exists()
    assert not (package / "queue_allocation_gate.go").exists()


def test_a_build_that_fails_says_what_the_compiler_said_and_leaves_nothing_that_looks_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GO_FAILS", "yes")
    with pytest.raises(LocalError, match="undefined: something"):
        ensure([ETCD], print)
    assert not directory(ETCD).exists()
    monkeypatch.setenv("GO_FAILS", "")
    assert (ensure([ETCD], print)["etcd"] / "etcd").exists()


def test_what_an_interrupted_build_left_is_not_taken_for_a_program_and_is_removed() -> None:
    half_built = directory(ETCD).with_name(f"{directory(ETCD).name}.building-x")
    half_built.mkdir(parents=True)
    (half_built / "etcd").write_text("half")
    assert (ensure([ETCD], print)["etcd"] / "etcd").read_text() == "program\n"
    assert not half_built.exists()


def test_without_go_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match=r"go is not on PATH[\s\S]*install Go"):
        ensure([ETCD], print)


def test_a_full_disk_is_noticed_before_a_long_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "FREE_DISK_FOR_A_COLD_BUILD", 2**80)
    long = Tool("etcd", ETCD.upstream, ETCD.packages, minutes=11)
    with pytest.raises(LocalError, match="GiB free"):
        ensure([long], print)


def test_another_version_or_another_setting_is_another_folder() -> None:
    other = Tool("etcd", ETCD.upstream, ETCD.packages, ETCD.minutes, stamps=("x=y",))
    assert directory(other) != directory(ETCD)
    assert toolchain.version(ETCD) in directory(ETCD).name


@pytest.mark.parametrize(
    "tool", [*CLUSTER_TOOLS, VOLCANO, *toolchain.PULUMI_TOOLS, *toolchain.PLUGIN_TOOLS], ids=lambda tool: tool.module
)
def test_every_module_is_pinned_with_its_checksums(tool: Tool) -> None:
    assert toolchain.version(tool).startswith("v")
    assert (toolchain.TOOLS / tool.module / "go.sum").stat().st_size > 0
