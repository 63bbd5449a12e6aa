"""The judge: the rules that a log must fulfil after a fault.

1. A message that was acknowledged is at its offset, or the log says that it is lost: by a GapError that covers the offset, by a
   ClusterError for its partition or for the whole file, or by a log record from WARNING on while the file is opened. The words
   "does not exist" say nothing about a topic that had messages: they advise to create it, which hides the loss.
2. Every message is delivered at most once per send, whole, in the partition to which it was sent, and in the order of its writer.
3. No offset is given to two messages.
4. A group skips nothing: a committed position is not above the positions that its members acknowledged, and below it everything
   was delivered.
5. Every exception is one of mqbridge's, and nothing hangs.

`Rules` says what else holds after a kind of fault. Both ways of reading are judged: `Cluster.read`, and a lane of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tests.log.faults.history import Ack, GroupPartition, History, PartitionId
from tests.log.faults.inspection import Observation, Reading
from tests.log.faults.messages import MessageId, topic_name

MAX_EXAMPLES = 3
OVERHEAD_BYTES = 200
"""More than the log stores of a message besides its payload."""
DENIAL = "does not exist"


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds after a kind of fault."""

    keeps_all: bool = False
    """Nothing acknowledged is lost, whether or not this is said, no committed position goes back, and appending works."""
    keeps_prefix: bool = False
    """Only the newest messages may be lost, silently: after a power failure with synchronous=normal."""
    keeps_working: bool = False
    """The log opens and appends, whatever was lost."""
    forgives_before_ns: int = 0
    """Messages that were acknowledged before this time may be lost silently: the fault has removed them on purpose."""
    retention_bytes: int | None = None
    """The log may have dropped the oldest messages of a partition beyond this size."""
    touched: Collection[MessageId] | None = None
    """The messages whose bytes the fault has changed; None if this is unknown."""
    damages_one_row: bool = False
    """The fault has changed only bytes of `touched`: all messages of other sends must be delivered."""


@dataclass(slots=True)
class Verdict:
    """Result of one fault."""

    acknowledged: int = 0
    lost_allowed: int = 0
    lost_said: int = 0
    silent: int = 0
    """Count of lost messages of which nothing was said."""
    intact: int = 0
    """Count of messages that the fault has not touched, and that are said to be lost."""
    problems: Counter[str] = field(default_factory=Counter)
    """Violated rules: how often each, by the words before the colon of `examples`."""
    examples: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    """Other figures."""

    def problem(self, text: str) -> None:
        """Count a violation; its kind is the text before the first colon."""
        kind = text.partition(":")[0]
        self.problems[kind] += 1
        if self.problems[kind] <= MAX_EXAMPLES:
            self.examples.append(text)


def judge(history: History, seen: Observation, rules: Rules) -> Verdict:
    """Compare what a fresh process saw after a fault with what was acknowledged before."""
    verdict = Verdict(acknowledged=history.acknowledged_messages)
    for text in (*history.problems, *seen.problems):
        verdict.problem(text)
    for conflict in history.conflicts:
        if conflict.ack.at_ns < rules.forgives_before_ns:
            verdict.notes["offsets given again after a loss"] += 1
        else:
            verdict.problem(conflict.text)
    _judge_losses(history, seen, rules, verdict)
    if verdict.problems["said to be lost"]:
        verdict.examples += _said(seen)
    if seen.error is None:
        for way, readings in seen.readings.items():
            for key, reading in readings.items():
                _judge_reading(history, key, reading, way, verdict)
        _judge_groups(history, seen, rules, verdict)
        _judge_appends(history, seen, rules, verdict)
    return verdict


def _said(seen: Observation) -> list[str]:
    """Return the first texts that the log has said."""
    gaps = [text for readings in seen.readings.values() for reading in readings.values() for *_, text in reading.gaps]
    errors = [reading.error[1] for readings in seen.readings.values() for reading in readings.values() if reading.error]
    return [f"said: {text}" for text in (*seen.opening, *seen.topic_errors.values(), *gaps, *errors)[:MAX_EXAMPLES]]


def _judge_losses(history: History, seen: Observation, rules: Rules, verdict: Verdict) -> None:
    """Apply rule 1 to every acknowledged message."""
    says_all = seen.error is not None or bool(seen.opening)
    if (rules.keeps_all or rules.keeps_working) and seen.error is not None:
        verdict.problem(f"does not open: {seen.error}")
    lost: list[tuple[Ack, bool]] = []
    """Lost messages, and whether the loss is said."""
    kept_until_ns = 0
    for key in history.acks:
        droppable = _droppable_before(history, key, rules.retention_bytes)
        for offset, ack in history.all_acks(key):
            ways = [readings.get(key, Reading()) for readings in seen.readings.values()]
            missing = [way for way in ways if way.messages.get(offset, (None, 0))[0] != ack.id]
            if not missing and seen.error is None:
                kept_until_ns = max(kept_until_ns, ack.at_ns)
            elif offset >= droppable:
                lost.append((ack, says_all or _says_topic(seen, key[0]) or all(way.says(offset) for way in missing)))
    if rules.keeps_prefix:
        for ack, _ in lost:
            if ack.at_ns < kept_until_ns:
                verdict.problem(f"hole: {ack.id} is lost, but messages that were acknowledged after it are not")
    for ack, is_said in lost:
        _count_loss(ack, is_said=is_said, rules=rules, verdict=verdict)
    if rules.touched is not None:
        shares = {history.shares.get(id_) for id_ in rules.touched}
        spared = [ack.id for ack, is_said in lost if is_said and ack.id not in rules.touched]
        verdict.intact = len(spared)
        if rules.damages_one_row and (outside := [id_ for id_ in spared if history.shares.get(id_) not in shares]):
            verdict.problem(f"intact but not delivered: {len(outside)} messages, such as {outside[0]}")


def _count_loss(ack: Ack, *, is_said: bool, rules: Rules, verdict: Verdict) -> None:
    if rules.keeps_all:
        verdict.silent += not is_said
        verdict.problem(f"{'said to be lost' if is_said else 'silent loss'}: {ack.id}")
    elif is_said:
        verdict.lost_said += 1
    elif rules.keeps_prefix or ack.at_ns < rules.forgives_before_ns:
        verdict.lost_allowed += 1
    else:
        verdict.silent += 1
        verdict.problem(f"silent loss: {ack.id}")


def _says_topic(seen: Observation, topic: int) -> bool:
    """Return True if the log reports an error of this topic, other than denying that it exists."""
    error = seen.topic_errors.get(topic)
    return error is not None and DENIAL not in error


def _droppable_before(history: History, key: PartitionId, retention_bytes: int | None) -> int:
    """Return the offset before which the retention may have dropped messages; 0 without retention."""
    if retention_bytes is None:
        return 0
    acks = sorted(history.all_acks(key), reverse=True)
    known = {ack.id for _, ack in acks}
    sizes = [size for id_, size in history.sizes.items() if (id_.topic, id_.partition) == key and id_ not in known]
    total = sum(sizes) + OVERHEAD_BYTES * len(sizes)
    share_bytes: Counter[int] = Counter()
    for id_, size in history.sizes.items():
        share_bytes[history.shares[id_]] += size + OVERHEAD_BYTES
    for offset, (id_, _) in acks:
        total += history.sizes[id_] + OVERHEAD_BYTES
        if total + share_bytes[history.shares[id_]] > retention_bytes:
            return offset + 1
    return 0


def _judge_reading(history: History, key: PartitionId, reading: Reading, way: str, verdict: Verdict) -> None:
    """Apply rule 2 to what one way of reading delivered."""
    where = f"{topic_name(key[0])}/{key[1]} by {way}"
    for text in reading.problems:
        verdict.problem(f"{text} ({where})")
    acks = history.acks.get(key, {})
    last: dict[int, int] = {}
    known: set[MessageId] = set()
    for offset, id_, size in _ordered(reading):
        if id_ is None:
            verdict.problem(f"damaged payload: {where}, offset {offset}")
        elif (id_.topic, id_.partition) != key:
            verdict.problem(f"wrong message: {where} has {id_} at offset {offset}")
        elif history.sizes.get(id_) != size:
            verdict.problem(
                f"damaged payload: {where}, offset {offset}: {id_} was sent with {history.sizes.get(id_)} bytes, not {size}"
            )
        elif offset in acks and all(ack.id != id_ for ack in acks[offset]):
            verdict.problem(f"wrong message: {where} has {id_} at offset {offset} of {acks[offset][-1].id}")
        elif id_ in known:
            verdict.problem(f"stored twice: {where}: {id_} at offset {offset}")
        elif id_.number < last.get(id_.writer, -1):
            verdict.problem(f"out of order: {where}: {id_} came after {last[id_.writer]}")
        if id_ is not None:
            known.add(id_)
            last[id_.writer] = max(id_.number, last.get(id_.writer, -1))


def _ordered(reading: Reading) -> Iterator[tuple[int, MessageId | None, int]]:
    for offset in sorted(reading.messages):
        yield offset, *reading.messages[offset]


def _judge_groups(history: History, seen: Observation, rules: Rules, verdict: Verdict) -> None:
    """Apply rule 4."""
    for key in sorted(history.acknowledged.keys() | history.committed.keys()):
        group, topic, partition = key
        position = seen.committed.get(key)
        where = f"{group} in {topic_name(topic)}/{partition}"
        is_said = DENIAL not in seen.group_errors.get(group, DENIAL) or bool(seen.opening) or _says_topic(seen, topic)
        if position is not None and position > max(history.acknowledged.get(key, 0), 0) and not is_said:
            verdict.problem(f"position ahead: {where} at {position}, acknowledged up to {history.acknowledged.get(key, 0)}")
        if (position or 0) < history.confirmed(key):
            if rules.keeps_all:
                verdict.problem(f"position went back: {where} from {history.confirmed(key)} to {position}")
            verdict.notes["positions back, silent" if not is_said else "positions back, said"] += 1
        if rules.keeps_all and position is not None:
            _judge_deliveries(history, seen, rules, key, position, verdict)
        _judge_movements(history, key, where, rules, verdict)


def _judge_deliveries(
    history: History, seen: Observation, rules: Rules, key: GroupPartition, position: int, verdict: Verdict
) -> None:
    """Check that the group received everything before its position."""
    group, topic, partition = key
    stored = seen.readings["read"].get((topic, partition), Reading()).messages
    droppable = _droppable_before(history, (topic, partition), rules.retention_bytes)
    skipped = [each for each in stored if droppable <= each < position and each not in history.delivered[key]]
    if skipped:
        where = f"{topic_name(topic)}/{partition}"
        verdict.problem(f"skipped by the group: {len(skipped)} messages from offset {skipped[0]} of {where}, {group}")


def _judge_movements(history: History, key: GroupPartition, where: str, rules: Rules, verdict: Verdict) -> None:
    """Check that no process saw a position that was below the one that another process had seen before."""
    highest = 0
    committed = [each for each in history.committed.get(key, ()) if each.begin_ns >= rules.forgives_before_ns]
    finished = sorted(committed, key=lambda each: each.end_ns)
    index = 0
    for each in sorted(committed, key=lambda each: each.begin_ns):
        while index < len(finished) and finished[index].end_ns < each.begin_ns:
            highest = max(highest, finished[index].position)
            index += 1
        if each.position < highest:
            verdict.problem(f"position went back: {where} from {highest} to {each.position} while members ran")


def _judge_appends(history: History, seen: Observation, rules: Rules, verdict: Verdict) -> None:
    """Apply rule 3 to the messages that were appended after the fault."""
    for key, text in seen.append_errors.items():
        verdict.notes["partitions that refuse appends"] += 1
        if rules.keeps_all or rules.keeps_working:
            verdict.problem(f"does not append: {topic_name(key[0])}/{key[1]}: {text}")
    for key, appended in seen.appended.items():
        acks = history.acks.get(key, {})
        reused = [offset for _, offset in appended if offset in acks]
        if not reused:
            continue
        ack = acks[reused[0]][-1]
        is_said = bool(seen.opening) or all(readings.get(key, Reading()).says(reused[0]) for readings in seen.readings.values())
        if is_said or rules.keeps_prefix or ack.at_ns < rules.forgives_before_ns:
            verdict.notes["offsets given again after a loss"] += len(reused)
        else:
            verdict.problem(f"offset given twice: {len(reused)} from offset {reused[0]} of {topic_name(key[0])}/{key[1]}")


def merge(verdicts: Mapping[int, Verdict]) -> Verdict:
    """Return the sum of the verdicts of several faults."""
    total = Verdict()
    for verdict in verdicts.values():
        total.acknowledged += verdict.acknowledged
        total.lost_allowed += verdict.lost_allowed
        total.lost_said += verdict.lost_said
        total.silent += verdict.silent
        total.intact += verdict.intact
        total.problems += verdict.problems
        total.notes += verdict.notes
    return total
