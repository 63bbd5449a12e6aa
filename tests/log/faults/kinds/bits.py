"""bits: a flipped bit, a zeroed sector, or a page in the place of another one, in each of the files of a log that nobody uses."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.messages import UNIT_BYTES, MessageId, tags
from tests.log.faults.scene import NAME, Scene, Stage, Verdicts, settings_of, topics_of, wait_for
from tests.log.faults.workload import Workload

GROUP = "group"
SECTOR = 512
PAGES = (4096, 16384)
STRUCTURE_SHARE = 0.5
"""Share of the faults that hit sectors without payloads, which are few."""
CHANGES = ("bit", "bit", "bit", "sector", "page")


class Damage(NamedTuple):
    """Changed bytes of a file."""

    file: str
    begin: int
    data: bytes
    """The bytes after the change."""
    change: str


class Template:
    """A log that was written once, stopped cleanly or killed, and is copied for every fault."""

    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self.stage, self.topics = scene.stage(f"template-{scene.index}"), topics_of(rng)
        self.is_clean = rng.random() < 0.5
        self.retention_bytes = rng.choice((None, 1 << 30))
        workload = Workload(
            path=self.stage.path,
            topics=self.topics,
            writer=1,
            seed=f"{scene.seed} bits {scene.index}",
            settings=settings_of(rng),
            sends=rng.randint(12, 40),
            cycles=rng.randint(1, 3),
            group=GROUP,
            rejoins=False,
            drain_s=rng.choice((0.0, 2.0)),
            crashes=not self.is_clean,
        )
        problems: list[str] = []
        wait_for(self.stage.start(workload), problems)
        self.history = self.stage.history()
        self.history.problems += problems
        self._sectors: dict[str, list[int]] = {}
        self.contents = {path.name: path.read_bytes() for path in self.stage.files()}

    def draw(self, rng: random.Random) -> Damage:
        """Draw a change of a byte or of several bytes."""
        names = [name for name, data in self.contents.items() if data]
        weights = [{NAME: 6.0, f"{NAME}-wal": 3.0}.get(name, 1.0) for name in names]
        name = rng.choices(names, weights)[0]
        data = self.contents[name]
        position = _index(rng, len(data))
        if rng.random() < STRUCTURE_SHARE:
            sectors = self._structure(name)
            if sectors:
                begin = sectors[_index(rng, len(sectors))]
                used = [begin + index for index, byte in enumerate(data[begin : begin + SECTOR]) if byte]
                position = used[_index(rng, len(used))]
        change = rng.choice(CHANGES)
        if change == "bit":
            return Damage(name, position, bytes([data[position] ^ (1 << rng.randrange(8))]), change)
        if change == "sector":
            begin = position // SECTOR * SECTOR
            return Damage(name, begin, bytes(min(SECTOR, len(data) - begin)), change)
        size = rng.choice(PAGES)
        begin = position // size * size
        other = _index(rng, -(-len(data) // size)) * size
        return Damage(name, begin, data[other : other + size][: len(data) - begin], change)

    def _structure(self, name: str) -> list[int]:
        """Return the offsets of the sectors of a file that have content, but no payloads."""
        if name not in self._sectors:
            data = self.contents[name]
            begins = range(0, len(data), SECTOR)
            self._sectors[name] = [
                begin
                for begin in begins
                if any(data[begin : begin + SECTOR]) and next(tags(data[begin : begin + SECTOR]), None) is None
            ]
        return self._sectors[name]

    def touched(self, damage: Damage) -> set[MessageId]:
        """Return the messages whose payloads the change meets."""
        data = self.contents[damage.file]
        begin, end = max(0, damage.begin - UNIT_BYTES), damage.begin + len(damage.data) + UNIT_BYTES
        return {id_ for _, id_ in tags(data[begin:end])}

    def is_inside_one_row(self, damage: Damage) -> bool:
        """Return True if the change lies inside the payload of one message in the database."""
        if damage.file != NAME or damage.change != "bit" or not self.is_clean:
            return False
        data = self.contents[damage.file]
        begin = max(0, damage.begin - UNIT_BYTES - 16)
        around = list(tags(data[begin : damage.begin + UNIT_BYTES + 16]))
        before = {id_ for at, id_ in around if begin + at < damage.begin - 16}
        after = {id_ for at, id_ in around if begin + at > damage.begin}
        return len(before | after) == 1 and bool(before) and bool(after)


def _index(rng: random.Random, count: int) -> int:
    """Draw an index; a slightly different count gives nearly the same one, because a template is never written twice the same."""
    return int(rng.random() * count)


def run(scene: Scene) -> Verdicts:
    """Write a log once, and damage copies of it."""
    template = Template(scene)
    for fault in scene.faults:
        rng = scene.rng_of(fault)
        stage = scene.stage(fault)
        yield fault, _damage(template, stage, rng)
        stage.remove()
    template.stage.remove()


def _damage(template: Template, stage: Stage, rng: random.Random) -> Verdict:
    damage = template.draw(rng)
    for name, data in template.contents.items():
        (stage.data / name).write_bytes(data)
    if damage.data == template.contents[damage.file][damage.begin : damage.begin + len(damage.data)]:
        rules = Rules(keeps_all=True)
    else:
        with (stage.data / damage.file).open("r+b") as file:
            file.seek(damage.begin)
            file.write(damage.data)
        rules = Rules(touched=template.touched(damage), damages_one_row=template.is_inside_one_row(damage))
    seen = stage.inspect(template.topics, (GROUP,), {"retention_bytes": template.retention_bytes})
    verdict = judge(template.history, seen, rules)
    if verdict.problems:
        verdict.notes[f"failures after a {damage.change} in {damage.file.removeprefix(NAME) or 'the database'}"] = 1
    verdict.examples = [f"{text} [{damage.change} at {damage.begin} of {damage.file}]" for text in verdict.examples]
    return verdict
