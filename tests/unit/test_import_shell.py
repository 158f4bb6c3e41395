"""Start scripts as the importer follows them; what it makes of words is compared with what bash makes of them."""

from __future__ import annotations

import subprocess

import pytest

from importer.shell import Run, run_command, run_script

FIGURES = {"TP": "8", "MODEL": "/models/v4 flash", "EXTRA": "--seed 7", "NONE": ""}


def nowhere(_: str) -> None:
    return None


def follow(script: str, **variables: str) -> Run:
    return run_script(script, variables, nowhere)


def words(run: Run) -> list[str]:
    assert run.engine is not None, "the engine is not started"
    return [argument.value for argument in run.engine]


@pytest.mark.parametrize(
    "arguments",
    [
        '"$MODEL" --tp $TP',
        "$EXTRA \"$EXTRA\" '$EXTRA'",
        '--json \'{"a": "$TP"}\' "{\\"b\\": $TP}"',
        '"a"\'b\'c$TP"${TP}"',
        "--x=${MISSING:-4} --y=${NONE:-5} --z=${NONE-6}",
        "--a \\\n  --b # a comment\n",
        "a\\ b \"\" '' $NONE",
        '--engine \'{"id": "\'"$TP"\'"}\'',
        '"$(cat <<JSON\n{"size": $TP, "text": "a)b"}\nJSON\n)"',
        '"$(cat <<\'JSON\'\n{"size": $TP}\nJSON\n)"',
        '"$(echo $TP "$MODEL")"',
        "a#b --c='#d' > /dev/null 2>&1",
    ],
)
def test_words_are_those_of_bash(arguments: str) -> None:
    script = f"vllm() {{ printf '%s\\0' \"$@\"; }}\nvllm serve {arguments}"
    expected = subprocess.run(
        ["bash", "-c", script.replace("> /dev/null 2>&1", "")], env=FIGURES, capture_output=True, check=True
    )
    assert words(follow(f"vllm serve {arguments}", **FIGURES)) == expected.stdout.decode().split("\0")[1:-1]


def test_what_is_exported_reaches_the_engine_and_what_is_assigned_does_not() -> None:
    run = follow("A=1\nexport B=2 C\nC=3\nexport D\nE=4 exec vllm serve m --seed $A", D="5")
    assert run.environment() == {"B": "2", "C": "3", "D": "5", "E": "4"}
    assert words(run) == ["m", "--seed", "1"]


def test_a_script_is_followed_into_the_scripts_that_it_calls() -> None:
    files = {
        "/work/start.sh": "source ./env.sh\nexec bash -e engine.sh",
        "/work/env.sh": "export N=3",
        "/work/engine.sh": "vllm serve m -tp $N",
    }
    run = run_command(["/bin/bash", "-c", "cd /work && ./start.sh"], {}, files.get)
    assert words(run) == ["m", "-tp", "3"]
    assert {argument.file for argument in run.engine or ()} == {"/work/engine.sh"}


def test_a_script_that_is_not_given_is_named() -> None:
    assert [one.path for one in run_command(["bash", "/scripts/run.sh"], {}, nowhere).missing] == ["/scripts/run.sh"]


@pytest.mark.parametrize(
    ("line", "path", "sourced"),
    [
        ("source /usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/ascend-toolkit/set_env.sh", True),
        (". ./env.sh", "/env.sh", True),
        ("source ~/.bashrc || true", "~/.bashrc", True),
        ('. "$HOME/.bashrc" >/dev/null 2>&1', "$HOME/.bashrc", True),
        ("bash -e /opt/prepare.sh", "/opt/prepare.sh", False),
    ],
)
def test_a_script_that_is_not_given_is_known_with_its_line_and_how_it_is_called(line: str, path: str, *, sourced: bool) -> None:
    run = follow(f"set -e\n{line}\nvllm serve m")
    assert run.missing == [(path, 1, "", sourced)]
    assert words(run) == ["m"]


def test_a_variable_in_single_quotes_is_known_not_to_be_expanded() -> None:
    run = follow("""vllm serve m --kv-transfer-config '{"engine_id": "$ID"}' --x "$ID" """, ID="a")
    assert [argument.value for argument in run.engine or () if argument.literal] == ['{"engine_id": "$ID"}']


def test_what_is_not_understood_is_kept_with_its_line() -> None:
    run = follow("set -e\nulimit -n 65535\nif [ -e /x ]; then\n  export A=1\nfi\nvllm serve m")
    assert [(text, line) for text, line, _ in run.unknown] == [
        ("ulimit -n 65535", 1),
        ("if [ -e /x ]; then export A=1; fi", 2),
    ]
    assert "A" not in run.environment(), "whether a branch is taken is not known"


def test_a_value_that_only_the_pod_has_stays_as_it_is_written() -> None:
    assert words(follow('HOST=$(hostname -I)\nvllm serve m --host "$HOST" --x $UNSET')) == [
        "m",
        "--host",
        "$(hostname -I)",
        "--x",
        "$UNSET",
    ]


@pytest.mark.parametrize("command", ["sleep 5", "echo hi", "cat a > /etc/b", "printf x | tee /etc/b", "env", "date"])
def test_what_leaves_something_outside_of_the_engine_is_kept_too(command: str) -> None:
    run = follow(f"{command}\nvllm serve m")
    assert [text for text, _, _ in run.unknown] == [command.partition(" |")[0]]
    assert words(run) == ["m"]


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("env A=1 vllm serve m", True),
        ("A=1 numactl -N 0 vllm serve m", False),
        ("A=1 nohup /opt/bin/vllm serve m | tee log", True),
    ],
)
def test_an_engine_is_found_behind_what_runs_it(command: str, known: bool) -> None:  # noqa: FBT001
    run = follow(command)
    assert (words(run), run.environment(), not run.unknown) == (["m"], {"A": "1"}, known)


def test_an_opening_word_after_then_is_one_more_level() -> None:
    run = follow("if a; then if b; then\n:\nfi\nexport A=1\nfi\nvllm serve m")
    assert "A" not in run.environment()


@pytest.mark.parametrize("command", ["python3 -m vllm.entrypoints.openai.api_server --model m", "vllm serve --model m"])
def test_the_engine_is_known_by_either_name(command: str) -> None:
    assert words(follow(command)) == ["--model", "m"]


def test_arguments_know_the_line_they_stand_on() -> None:
    run = follow("export A=1\n\nvllm serve m \\\n  --seed 1 \\\n  --port 2")
    assert [(argument.value, argument.offset) for argument in run.engine or ()][-2:] == [("--port", 4), ("2", 4)]
