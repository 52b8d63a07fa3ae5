from typing import Any

from wander import Messages, Rubric, SingleTurnEnv


def right(completion: Messages, answer: str) -> float:
    if completion[-1]["content"] == "break":
        raise ValueError("the reward function broke")
    return float(completion[-1]["content"] == answer)


def load_environment(size: int = 8) -> SingleTurnEnv:
    rows = [{"question": f"say {n}", "answer": str(n)} for n in range(size)]
    return SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=Rubric([right]), summary="Say a number.")


def solver(request: Any) -> str:
    return request.messages[-1]["content"].removeprefix("say ")


def wrong(request: Any) -> str:
    return "x"


def breaks_on_three(request: Any) -> str:
    number = solver(request)
    return "break" if number == "3" else number


def raises(request: Any) -> str:
    raise RuntimeError("no idea")


def slow(request: Any) -> str:
    import time

    time.sleep(0.3)
    return solver(request)
