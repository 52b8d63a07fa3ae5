"""The whole loop as a script: a teacher plays, a tiny model learns from it, GRPO improves it, the hub ranks.

    wander publish environments/tictactoe
    python examples/loop.py admin/tictactoe

Two CPU cores take a minute or two. It needs `wander-sdk[train]`, and a hub that you are logged in to.
"""

import sys

import wander
from wander.models import create_tiny

name = sys.argv[1]
with wander.load(name) as env:
    teacher = env.evaluate_sync("scripted:tictactoe.players:optimal", split="train", n=200)
    create_tiny([[*one.prompt, *one.completion] for one in teacher.rollouts], "tiny")
    tuned = wander.sft(teacher, model="tiny", out="sft", steps=20, schedule={"learning_rate": 2e-3})
    before = env.evaluate_sync(tuned.model, n=24, sampling={"max_tokens": 24})
    trained = wander.train(
        env,
        model=tuned.model,
        steps=2,
        batch={"rollouts": 32, "rows_at_once": 32},
        sampling={"max_tokens": 24},
    )
    after = env.evaluate_sync(trained.checkpoint, n=24, sampling={"max_tokens": 24})
print(f"{before.reward:.3f} -> {after.reward:.3f}, difference {before.compare(after).difference:+.3f}")

hub = wander.Hub()
for run in (before, after):
    print(hub.post(run).url)
for row in hub.leaderboard(name):
    print(row.model, row.reward_mean, row.level)
