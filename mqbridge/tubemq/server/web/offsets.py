"""The offsets of groups at the Broker: where they are, and moving them, which takes `manage` in the configuration.

A real Broker lets anybody move groups. What a Broker knows of the bytes of its files is NOT_KNOWN.
"""

from collections.abc import Mapping

from mqbridge.listener.topics import ListenedTopic
from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.server.web.answers import NOT_KNOWN, Answer, WebRefusal, broker_answer
from mqbridge.tubemq.server.web.context import TopicBounds, WebContext, for_each
from mqbridge.tubemq.server.web.methods import WebMethod
from mqbridge.tubemq.server.web.positions import GroupPosition, GroupPositions
from mqbridge.tubemq.server.web.requests import MAX_INT64, Parameters

MAX_SHOWN = 10_000
"""Maximum number of pairs of a group and a topic that are shown."""
MAX_MOVED = 1000
"""Maximum number of pairs of a group and a topic that one request moves."""
NO_TOPIC = "Invalid parameter: not found the topicName configure!"
NO_PARTITION = "Invalid parameter: not found the store by topicName!"


class OffsetPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._positions = GroupPositions(context.broker, context.consumers)

    def methods(self) -> Mapping[str, WebMethod]:
        """Return the methods of the Broker."""
        return {
            "admin_query_group_offset": WebMethod(self._offset),
            "admin_query_offset": WebMethod(self._offsets),
            "admin_manual_set_current_offset": WebMethod(self._set_one, modifies=True),
            "admin_set_offset": WebMethod(self._set, modifies=True),
        }

    # --- where groups are -----------------------------------------------------------------------------------------------

    async def _offset(self, parameters: Parameters) -> Answer:
        """Return where a group is in a partition; unlike a real Broker, this gives no position to a group that has none."""
        name, group = parameters.required("topicName"), parameters.required("groupName")
        index, is_real = parameters.number("partitionId"), parameters.flag("requireRealOffset")
        topic = await self._partition_topic(name, index)
        first, end = await self._bounds(topic, index)
        position = (await self._positions.of(topic, group)).get(index)
        answer = {
            "result": True,
            "errCode": 0,
            "errMsg": "OK!",
            "tmpOffset": 0 if position is None else self._in_flight(position),
            "minOffset": first,
            "maxOffset": end,
            "minDataOffset": NOT_KNOWN,
            "maxDataOffset": NOT_KNOWN,
        }
        if is_real:
            confirmed = NOT_KNOWN if position is None else self._context.broker.offset(position.confirmed)
            answer |= {"zkOffset": confirmed, "curReadDataOffset": -1, "curRdDltDataOffset": -1}
        return answer

    def _in_flight(self, position: GroupPosition) -> int:
        """Return what was handed out and is not confirmed, as a difference of offsets."""
        offset = self._context.broker.offset
        return offset(position.read_end) - offset(position.confirmed)

    async def _partition_topic(self, name: str, index: int) -> ListenedTopic:
        topic = await self._context.broker.find_topic(name)
        if topic is None:
            raise WebRefusal(NO_TOPIC)
        if index not in topic.partitions:
            raise WebRefusal(NO_PARTITION)
        return topic

    async def _bounds(self, topic: ListenedTopic, index: int) -> tuple[int, int]:
        """Return the offsets of the first and of the next message."""
        first, end = await self._context.broker.bounds_of(topic, index)
        return self._context.broker.offset(first), self._context.broker.offset(end)

    async def _offsets(self, parameters: Parameters) -> Answer:
        """Return where groups are in topics: in all that exist, unless some are named."""
        names, groups = parameters.names("topicName"), parameters.names("groupName")
        topics = {topic.name: topic for topic in await self._context.topics(names)}
        found = await self._find_positions(list(topics.values()), groups)
        used = [topic for topic in topics.values() if any(topic.name in by_topic for by_topic in found.values())]
        bounds = {each.topic.name: each for each in await self._context.with_bounds(used)}
        return broker_answer(
            [
                {
                    "groupName": group,
                    "subInfo": [self._in_topic(bounds[name], positions) for name, positions in by_topic.items()],
                    "topicCount": len(by_topic),
                }
                for group, by_topic in sorted(found.items())
            ]
        )

    async def _find_positions(
        self, topics: list[ListenedTopic], groups: list[str]
    ) -> dict[str, dict[str, dict[int, GroupPosition]]]:
        """Return the positions of groups, or of all if none are named, by group and topic."""

        async def names(topic: ListenedTopic) -> list[str]:
            return groups or await self._context.broker.services.groups.names(topic)

        pairs = [(topic, group) for topic, found in zip(topics, await for_each(topics, names), strict=True) for group in found]
        if len(pairs) > MAX_SHOWN:
            raise WebRefusal(f"there are more than {MAX_SHOWN} offsets of groups in topics: name those that you want")

        async def positions(pair: tuple[ListenedTopic, str]) -> dict[int, GroupPosition]:
            return await self._positions.of(*pair)

        by_group: dict[str, dict[str, dict[int, GroupPosition]]] = {}
        for (topic, group), found in zip(pairs, await for_each(pairs, positions), strict=True):
            if found:
                by_group.setdefault(group, {})[topic.name] = found
        return by_group

    def _in_topic(self, found: TopicBounds, positions: Mapping[int, GroupPosition]) -> Answer:
        offsets = [self._in_partition(index, end, positions.get(index)) for index, (_, end) in sorted(found.bounds.items())]
        return {"topicName": found.topic.name, "offsets": offsets, "partCount": len(offsets)}

    def _in_partition(self, index: int, end: int, position: GroupPosition | None) -> Answer:
        current = in_flight = lag = NOT_KNOWN
        if position is not None:
            current, in_flight = self._context.broker.offset(position.confirmed), self._in_flight(position)
            is_counted = self._context.broker.services.numbering.dense or current == end
            lag = max(0, end - current) if is_counted else NOT_KNOWN
        return {
            "partitionId": index,
            "curOffset": current,
            "flightOffset": in_flight,
            "curDataOffset": NOT_KNOWN,
            "offsetLag": lag,
            "dataLag": NOT_KNOWN,
            "offsetMax": end,
            "dataMax": NOT_KNOWN,
        }

    # --- moving ---------------------------------------------------------------------------------------------------------

    async def _set_one(self, parameters: Parameters) -> Answer:
        """Move a group in a partition; an offset between two messages is rounded down."""
        name, group = parameters.required("topicName"), parameters.required("groupName")
        parameters.required("modifyUser")
        index = parameters.number("partitionId")
        offset = parameters.number("manualOffset", lowest=-MAX_INT64)
        self._context.check_manage("move groups")
        topic = await self._partition_topic(name, index)
        first, end = await self._bounds(topic, index)
        if offset < first:
            raise WebRefusal(f"Invalid parameter: manualOffset lower than Current MinOffset:({offset}<{first})")
        if offset > end:
            raise WebRefusal(f"Invalid parameter: manualOffset bigger than Current MaxOffset:({offset}>{end})")
        before = (await self._positions.of(topic, group)).get(index)
        await self._positions.move(topic, group, {index: self._context.broker.number(offset)})
        old = NOT_KNOWN if before is None else self._context.broker.offset(before.confirmed)
        return {"result": True, "errCode": 0, "errMsg": "Manual update current Offset success!", "oldOffset": old}

    async def _set(self, parameters: Parameters) -> Answer:
        """Move groups: to named offsets (`manualSet`), or to the end of all partitions of topics.

        A named offset before the first message becomes that, and one behind the last message the end.
        """
        groups = parameters.names("groupName", required=True)
        parameters.required("manualSet")
        is_manual = parameters.flag("manualSet")
        parameters.required("modifyUser")
        wanted = parameters.offsets("offsetJsonInfo") if is_manual else {}
        names = [] if is_manual else parameters.names("topicName", required=True)
        self._context.check_manage("move groups")
        targets = await self._named_targets(wanted) if is_manual else await self._ends(names)
        if len(targets) * len(groups) > MAX_MOVED:
            raise WebRefusal(f"a request may move {MAX_MOVED} pairs of a group and a topic")
        for group in groups:
            for topic, offsets in targets:
                numbers = {index: self._context.broker.number(offset) for index, offset in offsets.items()}
                await self._positions.move(topic, group, numbers)
        return {"result": True, "errCode": 0, "errMsg": "OK"}

    async def _ends(self, names: list[str]) -> list[tuple[ListenedTopic, dict[int, int]]]:
        """Return the ends of topics that exist, by partition."""
        found = await self._context.with_bounds(await self._context.topics(names))
        return [(each.topic, {index: end for index, (_, end) in each.bounds.items()}) for each in found]

    async def _named_targets(self, wanted: Mapping[str, int]) -> list[tuple[ListenedTopic, dict[int, int]]]:
        """Return the offsets for partitions that exist here; others are left out. Raises WebRefusal if there are none."""
        by_topic: dict[str, dict[int, int]] = {}
        for key, offset in wanted.items():
            parts = [part.strip() for part in key.split(":")]
            if len(parts) != 3:
                raise WebRefusal(f"Parameter offsetJsonInfo's key invalid:{key} must be brokerId:topicName:partitionId !")
            broker, name, partition = parts
            if broker == str(BROKER_ID) and partition.isascii() and partition.isdecimal():
                by_topic.setdefault(name, {})[int(partition[:10])] = offset
        topics = await self._context.topics(by_topic) if by_topic else []
        targets = []
        for each in await self._context.with_bounds(topics):
            offsets = by_topic[each.topic.name]
            inside = {
                index: min(max(offset, each.bounds[index][0]), each.bounds[index][1])
                for index, offset in offsets.items()
                if index in each.bounds
            }
            if inside:
                targets.append((each.topic, inside))
        if not targets:
            raise WebRefusal("Parameter offsetJsonInfo's value is invalid!")
        return targets
