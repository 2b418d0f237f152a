"""How leases are renewed together, by answers that real nodes seldom give."""

from __future__ import annotations

import threading
import unittest
from typing import Any

from latchgate._clock import now
from latchgate._http import NoAnswer, encoded
from latchgate._nodes import Answer
from latchgate._renewals import Keeper, Renewals, Renewed, _batches, _request
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

    def test_35_no_request_is_longer_than_a_proxy_lets_pass(self) -> None:
        for key in ("k" * 512, "\N{GRINNING FACE}" * 128, '"' * 512):
            at = now()
            # A multilock has up to 64 keys.
            leases = [[named(key)] * count for count in [1] * 900 + [64] * 20]
            keepers = [Keeper("k", 0.9, Renewed(at, 0.9, {}), threading.Event(), leases=each) for each in leases]
            batches = list(_batches(keepers, at + 0.5))
            self.assertEqual(sum(len(batch) for batch in batches), len(keepers))
            self.assertLess(max(len(encoded(_request(batch)[1])) for batch in batches), 500_000)

    def only_the_seventh_is_lost(self) -> None:
        eventually(self.keepers[7].lost.is_set, "the loss")
        others = self.keepers[:7] + self.keepers[8:]
        lost_at = now()
        eventually(lambda: all(keeper.last.sent > lost_at for keeper in others), "renewals")
        self.assertFalse(any(keeper.lost.is_set() for keeper in others))


def named(key: str) -> dict[str, str]:
    return {"key": key, "lease_id": f"{key[:4]} of the length of an id of a lease"}
