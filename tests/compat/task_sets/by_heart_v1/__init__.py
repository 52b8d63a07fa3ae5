"""A task set without tools and without an end: sums, by heart."""

import itertools
from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        if trace.last_reply == "break":
            raise ValueError("the metric broke")
        return float(len(trace.last_reply))


class SumConfig(vf.TasksetConfig):
    add: int = 0


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    INFINITE = True

    def load(self) -> Iterator[SumTask]:
        for number in itertools.count():
            data = SumData(
                idx=number,
                prompt=f"{number} + {self.config.add}",
                system_prompt="Say the sum.",
                answer=str(number + self.config.add),
            )
            yield SumTask(data, self.config.task)


__all__ = ["SumTaskset"]
