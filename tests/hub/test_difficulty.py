"""The page and the API of a version show how hard its examples are, over the runs that the reader may see."""

from __future__ import annotations

from run_parcels import Parcel
from staged_uploads import posted

PATH = "/api/v1/environments/alice/reverse-text/versions/0.1.0/difficulty"


async def test_the_difficulty_covers_comparable_runs_that_the_reader_may_see(hub, run_of):
    sha256 = await hub.publish()
    assert (await hub.get(PATH)).json()["examples"] == 0
    assert 'id="difficulty"' not in (await hub.get("/alice/reverse-text")).text

    async def post(number: int, rewards: list[float | None], **changes) -> str:
        private, sealed = changes.pop("private", False), changes.pop("sealed", None)
        run_id = f"01JRUN000000000000000000{number:02}"
        manifest, rollouts = run_of(sha256, run_id=run_id, reward=rewards, **changes)
        manifest["environment"] |= {"sealed": sealed} if sealed else {}
        answer = await posted(hub.client, hub.auth(), Parcel.of(manifest, rollouts), private=private)
        assert answer.status_code == 201, answer.text
        return run_id

    first = await post(1, [1.0, 1.0, 0.0, 0.25, 0.0, 0.5], model="one")
    second = await post(2, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], model="two")
    await post(3, [0.0, None, 0.0, 0.0, 0.0, 0.0], model="a-failed-rollout")
    await post(4, [0.0] * 12, model="another-split", split="train", examples=6)
    await post(7, [1.0] * 6, model="played-a-sealed-set", sealed="a" * 64)
    withdrawn = await post(5, [0.0] * 6, model="withdrawn")
    private = await post(6, [0.0] * 6, model="one", private=True)
    path = f"/api/v1/runs/{withdrawn}"
    answer = await hub.client.delete(path, params={"reason": "a test"}, headers=hub.auth())
    assert answer.status_code == 200, answer.text

    found = (await hub.get(PATH)).json()
    assert found["split"] == "eval"
    assert [found[name] for name in ("runs", "models", "rollouts", "examples")] == [2, 2, 12, 3]
    assert found["histogram"]["counts"] == [1, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert found["solve_rate"] == (1 + 0.25 + 0) / 3
    assert [(one["example_id"], one["solve_rate"]) for one in found["hardest"]] == [
        ("2", 0.0),
        ("1", 0.25),
        ("0", 1.0),
    ]
    hardest = found["hardest"][0]
    assert hardest["lowest"] == {"run_id": second, "number": 4, "reward": 0.0}
    assert hardest["highest"] == {"run_id": first, "number": 5, "reward": 0.5}
    page = (await hub.get("/alice/reverse-text")).text
    assert "2 models solved <b>42%</b> of 3 examples of the eval split" in page
    assert f'<a href="/runs/{first}/rollouts/5">0.50</a>' in page
    assert private not in page

    own = (await hub.get(PATH, headers=hub.auth("alice"))).json()
    assert (own["runs"], own["hardest"][-1]["solve_rate"]) == (3, 4 / 6)
    assert (await hub.get(PATH)).json() == found
