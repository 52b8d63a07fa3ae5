"""Repairs of a file in a container, for `verifiers.v1`."""

import verifiers.v1 as vf


class RepairTask(vf.Task[vf.TaskData]):
    NEEDS_CONTAINER = True

    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("greeting.txt", b"goodbye\n")

    @vf.reward
    async def repaired(self, runtime: vf.Runtime) -> float:
        return float(await runtime.read("greeting.txt") == b"hello\n")

    @vf.metric
    async def checked(self, runtime: vf.Runtime) -> float:
        result = await runtime.run(["sh", "-c", "echo seen; echo failed >&2; exit 3"], {})
        return float((result.exit_code, result.stdout, result.stderr) == (3, "seen\n", "failed\n"))


class RepairConfig(vf.TasksetConfig):
    image: str | None = None


class RepairTaskset(vf.Taskset[RepairTask, RepairConfig]):
    def load(self) -> list[RepairTask]:
        row = vf.TaskData(idx=0, prompt="Correct the word in greeting.txt.", image=self.config.image)
        return [RepairTask(row, self.config.task)]


__all__ = ["RepairTaskset"]
