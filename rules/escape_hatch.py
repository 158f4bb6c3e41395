"""What extraArgs and env may not override: what is derived from the declaration, and what Kthena sets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from models.stack import Stack
from render.arguments import derived_flags
from render.pods import DERIVED_ENV
from rules.finding import Problem, in_deployment, roles, rule

SHORT_FLAGS = {
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-pp": "--pipeline-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-cc": "--compilation-config",
    "-O": "--compilation-config",
}
KTHENA_ENV = frozenset({"ENTRY_ADDRESS", "GROUP_SIZE", "WORKER_INDEX"})
"""Set by Kthena in every container, over the user's (v1.0.0 model_serving_controller)"""


@rule("PD301", source="vLLM's FlexibleArgumentParser and engine arguments")
def extra_args_repeat_no_derived_flag(stack: Stack) -> Iterator[Problem]:
    """vLLM takes the last of two equal flags, so one number would stand in two places.

    It reads ``_`` as ``-``, ``--no-X`` as the opposite of ``--X``, ``--X.key=value`` as a part of the JSON of ``--X``, and has
    short forms."""
    for deployment, role, declared in roles(stack):
        derived = derived_flags(deployment, role)
        for index, argument in enumerate(declared.extra_args):
            flag = _meant(argument)
            if flag in derived or f"--no-{flag[2:]}" in derived:
                yield Problem(
                    in_deployment(deployment, role, "extraArgs", index),
                    f"{argument}: {flag} follows from the declaration",
                    "declare it in its own field and leave it out here",
                )


def _meant(argument: str) -> str:
    """The flag that vLLM understands by a word."""
    word = argument.partition("=")[0].partition(".")[0].replace("_", "-")
    word = "-O" if re.fullmatch(r"-O\d*", word) else word
    flag = SHORT_FLAGS.get(word, word)
    return f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag


@rule("PD302", source="Kthena v1.0.0 pkg/model-serving-controller; render/scripts.py")
def env_sets_nothing_derived_or_reserved(stack: Stack) -> Iterator[Problem]:
    """Kthena replaces its own variables, and the start script sets the derived ones after these."""
    for deployment, role, declared in roles(stack):
        for name in sorted(declared.env.keys() & (DERIVED_ENV | KTHENA_ENV)):
            owner = "Kthena sets it" if name in KTHENA_ENV else "it follows from the declaration"
            yield Problem(in_deployment(deployment, role, "env", name), f"{owner}", "leave it out")
