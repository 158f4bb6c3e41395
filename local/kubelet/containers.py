"""One container: its process, its probes, its restarts, and what a kubelet reports about it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Literal

from local.api import Object
from local.kubelet import ERR_IMAGE_PULL, StartError
from local.kubelet.events import Notice, Tell
from local.kubelet.output import Output, termination_message
from local.kubelet.probes import Prober, schedule, verdicts
from local.kubelet.tasks import begin
from local.state import PodFolder

RETRY_SECONDS = 1.0
"""between attempts to start what can't be started for now"""
BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)
"""seconds before the first, second ... restart; the last one goes on"""
STEADY_SECONDS = 30.0
"""a run of this length starts the back-off anew"""
GRACE_OF_THE_UNHEALTHY = 5.0
"""seconds between SIGTERM and SIGKILL for a container that its probes gave up"""
LEAST_GRACE = 2.0
"""seconds between them for a container whose preStop hook used up the grace period, as in a real kubelet"""
KILLED = 128
"""exit codes of processes that a signal ended begin here"""
TERMINATION_LOG = "termination-log"
"""in the container's folder: the file that it has at its terminationMessagePath"""

log = logging.getLogger(__name__)


def now() -> str:
    """The time as Kubernetes writes it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Container:
    """A container of a pod, whatever its process does."""

    def __init__(
        self,
        spec: Object,
        directory: Path,
        start: Callable[[], Awaitable[tuple[str, ...]]],
        changed: Callable[[], None],
        tell: Tell,
    ) -> None:
        """Prepare a container that does not run yet.

        Args:
            spec: the container as the pod declares it
            directory: its folder on the machine; its output goes to the file ``log`` there
            start: makes what it needs and returns the command that runs it, or raises StartError
            changed: called when what ``status`` returns has changed
            tell: called with what deserves an event
        """
        self.spec = spec
        self.name: str = spec["name"]
        self.directory = directory
        self.restarts = 0
        self.last_state: Object = {}
        self.ready = False
        self.started = False
        self.done = False
        """it has ended, and is not to run again"""
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.environment: dict[str, str] = {}
        """of its processes; ``start`` sets it"""
        self.output = Output(directory / "log")
        self._start, self._changed, self._notify = start, changed, tell
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def exit_code(self) -> int | None:
        """Of its last run, if it does not run now."""
        code: int | None = self.state.get("terminated", {}).get("exitCode")
        return code

    def status(self) -> Object:
        """An entry of the pod's ``containerStatuses``."""
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "containerID": f"local://{self.directory.parent.name}/{self.name}/{self.restarts}",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    def resume(self, status: Object) -> None:
        """Go on where an earlier kubelet ended: its restart is no restart of the container's own."""
        self.restarts = status.get("restartCount", 0)
        self.last_state = status.get("lastState") or {}

    def wait_for(self, reason: str, message: str = "") -> None:
        """It can't run now, for ``reason``."""
        waiting = {"reason": reason, "message": message} if message else {"reason": reason}
        if self.state != {"waiting": waiting}:
            self.state = {"waiting": waiting}
            self._changed()

    async def run(self, restarts: Callable[[int], bool], prober: Prober, address: str) -> int:
        """Run it, and again for as long as it ``restarts`` after an exit code; return the last exit code."""
        (self.directory / "log").touch()
        attempt = 0
        while True:
            began = time.monotonic()
            code = await self._run_once(prober, address)
            if self._stopping or not restarts(code):
                self.done = True
                self._changed()
                return code
            attempt = 0 if time.monotonic() - began > STEADY_SECONDS else attempt
            delay = BACK_OFF[min(attempt, len(BACK_OFF) - 1)]
            attempt += 1
            self.last_state = self.state
            self._tell("BackOff", f"Back-off restarting failed container {self.name} in pod {self._pod}")
            self.wait_for("CrashLoopBackOff", f"back-off {delay:g}s restarting failed container={self.name} pod={self._pod}")
            await asyncio.sleep(delay)
            self.restarts += 1

    async def pretend(self, *, ends: bool) -> int:
        """Do as if it ran: it ends at once and well if it ``ends``, else it is ready at once and for ever."""
        if ends:
            self.state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}}
            self.done = True
            self._changed()
            return 0
        self.state = {"running": {"startedAt": now()}}
        self.ready = self.started = True
        self._changed()
        await asyncio.Event().wait()
        return 0

    async def stop(self, grace: float, hurry: asyncio.Event, prober: Prober, address: str, *, say: bool = False) -> None:
        """End it: the preStop hook, SIGTERM, and SIGKILL after ``grace`` seconds or in a ``hurry``; ``say`` so in an event."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        if say:
            self._tell("Killing", f"Stopping container {self.name}", "Normal")
        deadline = time.monotonic() + grace
        ended = asyncio.create_task(process.wait())
        hurried = asyncio.create_task(hurry.wait())
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        least = 0.0
        if hook and grace:
            await self._pre_stop(hook, grace, prober, address, {ended, hurried})
            least = LEAST_GRACE
        self._signal(signal.SIGTERM)
        left = max(least, deadline - time.monotonic())
        await asyncio.wait({ended, hurried}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self._signal(signal.SIGKILL)
        await ended
        hurried.cancel()

    async def _pre_stop(self, hook: Object, grace: float, prober: Prober, address: str, until: set[asyncio.Task[object]]) -> None:
        if "sleep" in hook:
            running = asyncio.create_task(asyncio.sleep(hook["sleep"]["seconds"], result=""))
        else:
            patient = {**hook, "timeoutSeconds": grace}
            running = asyncio.create_task(prober.ask(patient, self.spec, address, self.execute))
        await asyncio.wait({running, *until}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not running.cancel() and running.result():
            log.info("%s: preStop hook of %s: %s", self._pod, self.name, running.result())
            self._tell("FailedPreStopHook", "PreStopHook failed")  # what the hook said may be secret

    async def _run_once(self, prober: Prober, address: str) -> int:
        command = await self._command()
        began = now()
        with self.output.begin() as written:
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
                env={"PATH": os.environ["PATH"]},  # for what sets it up; the container's own is in its specification
            )
        watcher = begin(self._watch_health(prober, address), self._watch_failed)
        try:
            if self._stopping:  # it was told to stop while it was being started
                self._signal(signal.SIGKILL)
            self.state = {"running": {"startedAt": began}}
            self._changed()
            code = await process.wait()
        finally:
            watcher.cancel()
            self._signal(signal.SIGKILL)
            self._process = None
            self.ready = self.started = False
            self.output.end()
        code = KILLED - code if code < 0 else code
        message = termination_message(self.spec, self.directory / TERMINATION_LOG, self.output, code)
        self.state = {
            "terminated": {
                "exitCode": code,
                "reason": "Error" if code else "Completed",
                **({"message": message} if message else {}),
                "startedAt": began,
                "finishedAt": now(),
                "containerID": self.status()["containerID"],
            }
        }
        self._changed()
        return code

    async def _command(self) -> tuple[str, ...]:
        """Command that runs it, as soon as it has one."""
        pulled = False
        while True:
            try:
                return await self._start()
            except StartError as error:
                if error.reason == ERR_IMAGE_PULL:
                    self._wait_for_image(error.message, again=pulled)
                    pulled = True
                else:
                    self._tell("Failed", f"Error: {error.message}")
                    self.wait_for(error.reason, error.message)
            await asyncio.sleep(RETRY_SECONDS)

    def _wait_for_image(self, complaint: str, *, again: bool) -> None:
        """Its image can't be pulled: an attempt has failed, or ``again`` means that there is time until the next one."""
        image = self.spec["image"]
        if again:
            back_off = f'Back-off pulling image "{image}"'
            self._tell("BackOff", back_off, "Normal")
            reason, message = "ImagePullBackOff", f"{back_off}: {ERR_IMAGE_PULL}: {complaint}"
        else:
            self._tell("Failed", f'Failed to pull image "{image}": {complaint}')
            reason, message = ERR_IMAGE_PULL, complaint
        self._tell("Failed", f"Error: {reason}")
        self.wait_for(reason, message)

    async def _watch_health(self, prober: Prober, address: str) -> None:
        """Set ``started`` and ``ready`` as the probes say, and end the process when they say that it is dead."""

        def judged(kind: str) -> AsyncIterator[bool]:
            probe = self.spec[kind]

            async def ask() -> str:
                complaint = await prober.ask(probe, self.spec, address, self.execute)
                if complaint:
                    self._tell("Unhealthy", f"{kind.removesuffix('Probe').capitalize()} probe failed: {complaint}")
                return complaint

            return verdicts(schedule(probe), ask)

        if "startupProbe" in self.spec and not await anext(judged("startupProbe")):
            self._give_up("startup")
            return
        self.started = True
        self.ready = "readinessProbe" not in self.spec
        self._changed()
        watchers = {"readinessProbe": self._watch_readiness, "livenessProbe": self._watch_liveness}
        await asyncio.gather(*(watch(judged(kind)) for kind, watch in watchers.items() if kind in self.spec))

    def _watch_failed(self, error: BaseException) -> None:
        self.ready = False
        self._changed()
        self._tell("FailedSync", f"the probes of {self.name} are no longer asked: {type(error).__name__}: {error}")

    async def _watch_readiness(self, judged: AsyncIterator[bool]) -> None:
        async for healthy in judged:
            if healthy != self.ready:
                self.ready = healthy
                self._changed()

    async def _watch_liveness(self, judged: AsyncIterator[bool]) -> None:
        async for healthy in judged:
            if not healthy:
                self._give_up("liveness")
                return

    def _give_up(self, probe: str) -> None:
        if self._stopping:  # it ends anyway, as soon as its preStop hook has
            return
        self._tell("Killing", f"Container {self.name} failed {probe} probe, will be restarted", "Normal")
        grace = self.spec[f"{probe}Probe"].get("terminationGracePeriodSeconds")
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(GRACE_OF_THE_UNHEALTHY if grace is None else grace, self._kill, self._process)

    def _kill(self, process: asyncio.subprocess.Process | None) -> None:
        if process is self._process:
            self._signal(signal.SIGKILL)

    async def execute(self, command: list[str]) -> str:
        """Run ``command`` inside the container; return why it failed, empty if it did not. It ends when this is cancelled."""
        if self._process is None:
            return "the container does not run"
        inside = Path(f"/proc/{self._process.pid}/ns")
        user = ("--user", "--preserve-credentials") if os.geteuid() else ()
        enter = ("nsenter", "--target", str(self._process.pid), *user, "--mount", f"--pid={inside}/pid_for_children")
        process = await asyncio.create_subprocess_exec(
            *enter,
            "--",
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=self.environment,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        said = output.decode(errors="replace").strip()
        return (said or f"exit code {process.returncode}") if process.returncode else ""

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, number)

    @property
    def _pod(self) -> str:
        """Its pod, as a kubelet's messages name it."""
        namespace, name, uid = PodFolder.of(self.directory.parent)
        return f"{name}_{namespace}({uid})"

    def _tell(self, reason: str, message: str, kind: Literal["Warning", "Normal"] = "Warning") -> None:
        self._notify(Notice(reason, message, kind, self.name))
