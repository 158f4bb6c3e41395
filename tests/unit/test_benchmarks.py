"""What the benchmarks declare passes the rules, so that they can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import check, cost
from rules import read, read_file


def test_the_benchmark_of_pulumi_up_declares_no_mistake() -> None:
    assert read(cost.declared("2P1D")).deployments


@pytest.mark.parametrize("deployments", check.SIZES)
def test_the_benchmark_of_the_check_declares_no_mistake(tmp_path: Path, deployments: int) -> None:
    stack, _ = read_file(check.stack_file(tmp_path, deployments))
    assert len(stack.deployments) == deployments
