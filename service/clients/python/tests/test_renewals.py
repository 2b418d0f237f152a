"""How leases are renewed together, by answers that real nodes seldom give."""

from __future__ import annotations

import threading
import unittest
from typing import Any

from latchgate._clock import now
from latchgate._http import NoAnswer
from latchgate._nodes import Answer
from latchgate._renewals import Keeper, Renewals, Renewed
from latchgate._thread import Runner

from .world import eventually


class Nodes:
    """One node, whose answers are those of `answer`."""

    timeout = 5.0

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.refused = ""
        self.unanswered = ""

    def __len__(self) -> int:
        return 1

    async def send(self, path: str, body: dict[str, Any], timeout: float) -> Answer:
        sent = now()
        keys = [lease["key"] for lease in body["leases"]]
        self.calls.append(keys)
        if self.unanswered in keys:
            raise NoAnswer("it hangs")
        if self.refused in keys:
            return Answer(sent, 403, {"code": "forbidden", "index": keys.index(self.refused)})
        results = [{**lease, "status": 200, "ttl_ms": 900, "revocation": None} for lease in body["leases"]]
        return Answer(sent, 200, {"results": results})


class Renewing(unittest.TestCase):
    def setUp(self) -> None:
        self.nodes = Nodes()
        self.keepers: list[Keeper] = []
        self.runner = Runner()
        self.runner.run(self.begin())

    async def begin(self) -> None:
        renewals = Renewals(self.nodes)  # type: ignore[arg-type]
        for number in range(40):
            key = f"k{number}"
            self.keepers.append(Keeper(key, 0.9, Renewed(now(), 0.9, {}), threading.Event(), leases=[named(key)]))
            renewals.keep(self.keepers[-1])
            self.addCleanup(self.keepers[-1].stop)

    def test_a_key_that_the_api_key_may_not_use_takes_no_other_with_it(self) -> None:
        self.nodes.refused = "k7"
        self.only_the_seventh_is_lost()
        # It goes alone from the second request on.
        self.assertLess(sum("k7" in keys and len(keys) > 1 for keys in self.nodes.calls), 3)

    def test_a_key_whose_renewals_hang_takes_no_other_with_it(self) -> None:
        self.nodes.unanswered = "k7"
        self.only_the_seventh_is_lost()

    def test_an_answer_whose_results_are_of_other_leases_renews_none(self) -> None:
        answered = self.nodes.send

        async def of_others(path: str, body: dict[str, Any], timeout: float) -> Answer:
            answer = await answered(path, body, timeout)
            return Answer(answer.sent, 200, {"results": [{**result, "lease_id": "other"} for result in answer.body["results"]]})

        self.nodes.send = of_others  # type: ignore[method-assign]
        eventually(lambda: all(keeper.lost.is_set() for keeper in self.keepers), "all are lost")

    def only_the_seventh_is_lost(self) -> None:
        eventually(self.keepers[7].lost.is_set, "the loss")
        others = self.keepers[:7] + self.keepers[8:]
        lost_at = now()
        eventually(lambda: all(keeper.last.sent > lost_at for keeper in others), "renewals")
        self.assertFalse(any(keeper.lost.is_set() for keeper in others))


def named(key: str) -> dict[str, str]:
    return {"key": key, "lease_id": key}
