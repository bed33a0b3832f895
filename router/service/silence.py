"""Gives up the calls at engines that are lost (`router.control.silence` says when)."""

from __future__ import annotations

import asyncio
import logging
from math import inf

from router.control.silence import Cut, SilenceRules, step_silence
from router.domain.units import Seconds
from router.ports import Clock, EngineLines
from router.service.fleet import Fleet
from router.service.members import Member

_LOG = logging.getLogger(__name__)


class SilenceWatch:
    """Looks at every instance at an interval, and cuts what waits in vain.

    A call that is cut fails as any other: a prefill runs elsewhere, and so does a decode leg of
    which the engine's host acknowledged nothing. Another decode leg may have run and is a 502.
    """

    def __init__(
        self,
        fleet: Fleet,
        lines: EngineLines,
        *,
        clock: Clock,
        interval: Seconds,
        rules: SilenceRules,
    ) -> None:
        self._fleet = fleet
        self._lines = lines
        self._clock = clock
        self._interval = interval
        self._rules = rules
        self._lost: dict[str, Seconds] = {}  # by address

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._interval)

    def look(self) -> None:
        """Look once at everybody.

        Who was lost and has been removed since is not probed any more: nothing waits for it now.
        """
        before, self._lost = self._lost, {}
        for member in self._fleet.members:
            since = self._look_at(member, before.get(member.instance.url))
            if since is not None:
                self._lost[member.instance.url] = since
        present = {member.instance.url for member in self._fleet.members}
        for url in before.keys() - present:
            self._cut(url, begun=True)

    def _look_at(self, member: Member, since: Seconds | None) -> Seconds | None:
        """Return since when an instance is lost, None for one that is not; cut what is due."""
        now, url = self._clock.monotonic(), member.instance.url
        answered = inf if member.answered_at is None else now - member.answered_at
        heard = self._lines.silence(url)
        since, cut = step_silence(
            since,
            down=self._fleet.is_down(member),
            silent=answered if heard is None else min(answered, heard),
            now=now,
            rules=self._rules,
        )
        if cut is not Cut.NOTHING:
            self._cut(url, begun=cut is Cut.ALL)
        return since

    def _cut(self, url: str, *, begun: bool) -> None:
        count = self._lines.cut(url, begun=begun)
        if count:
            _LOG.warning("gave up %d calls at %s, which is down and silent", count, url)
