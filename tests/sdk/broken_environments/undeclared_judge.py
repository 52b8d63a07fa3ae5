"""Asks a judge and does not say so."""

from wander import JudgeRubric, SingleTurnEnv
from wander.rubrics.judge import judge_score


def load_environment(deterministic=True):
    rubric = JudgeRubric([judge_score], model="judge", base_url="http://127.0.0.1:9/v1")
    rubric.judge.client.max_retries = 0
    return SingleTurnEnv([{"question": "q", "answer": "a"}], rubric=rubric, deterministic=deterministic)
