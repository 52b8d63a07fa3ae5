"""A task set with a tool server: double a number."""

import verifiers.v1 as vf

from .servers.tool import DoubleToolset


class DoubleData(vf.TaskData):
    answer: str


class DoubleConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class DoubleTask(vf.Task[DoubleData, vf.State, DoubleConfig]):
    @classmethod
    def toolsets(cls, config: DoubleConfig) -> list[vf.Toolset]:
        return [DoubleToolset(config.tools)]

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)


class AdderConfig(vf.TasksetConfig):
    count: int = 3
    task: DoubleConfig = DoubleConfig()


class AdderTaskset(vf.Taskset[DoubleTask, AdderConfig]):
    def load(self) -> list[DoubleTask]:
        rows = [DoubleData(idx=n, prompt=f"double {n}", answer=str(2 * n)) for n in range(self.config.count)]
        return [DoubleTask(row, self.config.task) for row in rows]


__all__ = ["AdderTaskset"]
