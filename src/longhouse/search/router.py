"""Routes `model="auto"`: chooses the agent that fits a request, and gives the reason."""

import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from longhouse.lazy_pattern import compiled_later
from longhouse.search import directory, tokenizer
from longhouse.search.directory import AgentDirectory, AgentHit

AUTO: Final = "auto"
CANDIDATES: Final = 5
MORE_CANDIDATES: Final = 50

# Small talk in English, Russian and Chinese: greetings, thanks and the like, which name no task.
_ENGLISH: Final = r"""
    hi|hello|hey|hiya|howdy|yo|greetings|good\s(?:morning|afternoon|evening|night|day)|welcome(?:\sback)?
    |how\sare\s(?:you|things)(?:\sdoing)?(?:\stoday)?|how(?:'s|\sis)\s(?:it\sgoing|life|your\sday)|what(?:'s|\sis)\s(?:up|new)
    |(?:nice|pleased|good)\sto\s(?:meet|see)\syou|are\syou\s(?:there|here|ok|okay|real|human|a\s(?:bot|robot|human))
    |(?:who|what)\sare\syou|what\scan\syou\sdo|what(?:'s|\sis)\syour\sname|can\syou\shelp(?:\sme)?|help(?:\sme)?
    |thanks?(?:\syou)?(?:\s(?:a\slot|so\smuch|very\smuch))?|thx|cheers|you(?:'re|\sare)\s(?:welcome|great|awesome|the\sbest)
    |bye(?:\sbye)?|goodbye|see\s(?:you|ya)(?:\s(?:later|soon|tomorrow))?|take\scare
    |ok|okay|yes|yeah|yep|no|nope|sure|fine|great|cool|nice|super|awesome|perfect|wow|well\sdone|good\s(?:job|work|bot)
    |got\sit|i\ssee|understood|sorry|never\smind|lol|ha(?:ha)+|hm+|oh|ah|please
"""
_RUSSIAN: Final = r"""
    привет(?:ик|ствую)?|здравствуй(?:те)?|здорово|здрасте|хай|салют|алло|ау|добр(?:ое|ый|ой|ого)\s(?:утро|утра|день|дня|вечер|вечера|ночи)
    |спокойной\sночи|как\s(?:ты|вы|дела|делишки|жизнь|сам|настроение|поживае(?:шь|те))(?:\sсегодня)?|что\sнового
    |(?:ты|вы)\s(?:кто|тут|здесь|где|живой|робот|бот|человек)|кто\s(?:ты|вы)(?:\sтак(?:ой|ая|ие))?|есть\sкто(?:-нибудь)?
    |(?:что\s)?(?:ты|вы)?\s?(?:умее(?:шь|те)|може(?:шь|те)\sпомочь)|как\s(?:тебя|вас)\sзовут|помоги(?:те)?(?:\sмне)?
    |(?:большое\s|огромное\s)?спасибо(?:\s(?:большое|огромное))?|благодарю|спс|пожалуйста|не\sза\sчто
    |пока|до\s(?:свидания|встречи|завтра|скорого)|увидимся|всего\sдоброго|удачи
    |да|нет|ага|угу|ок|окей|хорошо|ладно|отлично|супер|класс(?:но)?|круто|здорово|прекрасно|молодец|умница|ура|ого
    |понятно|понял|поняла|ясно|извини(?:те)?|прости(?:те)?|ничего|ха(?:ха)+|хм+|ой
"""
_CHINESE: Final = (
    "你们?好(?:吗|呀|啊)?|您好|大家好|嗨|哈[喽啰]|喂|早上好|上午好|中午好|下午好|晚上好|早安|午安|晚安|早啊?|最近(?:怎么样|好吗|如何)"
    "|你?(?:过得)?(?:怎么样|还好吗)|吃了吗|你(?:是谁|叫什么(?:名字)?|会什么|能做什么|能帮我吗|是机器人吗)|您是谁|在吗|在不在|有人吗"
    "|(?:非常|太|多)?(?:谢谢|感谢|多谢)(?:你|您|大家)?(?:了|啦)?|辛苦了|不客气|没关系|没事|再见|拜拜|回头见|明天见"
    "|好[的吧啊呀嘞]?|嗯+|哦+|噢|行|可以|是的|对的?|不是|不用了?|没有|[哈呵嘿]{2,}|太[棒好]了|真[棒好]|很好|厉害|不错|赞|牛"
    "|明白了?|知道了|懂了|收到|抱歉|对不起|不好意思|麻烦你?了?|请问"
)
_SAID: Final = compiled_later(
    rf"(?<![\w'])(?:{_ENGLISH}|{_RUSSIAN})(?![\w'])|(?:^|(?<=\W))(?:{_CHINESE})+(?=\W|$)",
    re.IGNORECASE | re.VERBOSE,
)

LONGEST_TALK: Final = 200
"""Characters; a longer text asks for something."""


class Routed(msgspec.Struct, frozen=True):
    """The chosen template, and the reason."""

    template: str
    why: str
    confidence: float = 0.0

    @property
    def as_dict(self) -> dict[str, Any]:
        return {"template": self.template, "why": self.why, "confidence": round(self.confidence, 3)}


class Router(msgspec.Struct, frozen=True):
    directory: AgentDirectory
    default: str
    """The template used when no agent fits: a wrong choice would be more likely than a right one."""

    async def choose(self, text: str, owner: str, *, allowed: Collection[str] | None = None) -> Routed:
        """`allowed`: the templates that the caller may use; None: all."""
        default, who = self.default, "the default"
        if allowed and default not in allowed:
            default, who = min(allowed), "the first that this key may use"
        if is_small_talk(text):
            return Routed(default, f"nothing is asked for yet, so {who} answers")
        # Among few agents of many, the fitting ones may come far behind.
        candidates = CANDIDATES if allowed is None else MORE_CANDIDATES
        hits = await self.directory.search(text, candidates, owner=owner)
        found = [hit for hit in hits if hit.is_sure and (allowed is None or hit.name in allowed)]
        if not found:
            return Routed(default, f"no agent fits well enough, so {who} answers")
        return Routed(found[0].name, _why(found[0]), found[0].confidence)


def _why(hit: AgentHit) -> str:
    if hit.tool and directory.evidence(hit.tool) > directory.evidence(hit.own):
        return f"its tool {hit.tool.name} fits the request best"
    return "what it says of itself fits the request best"


def is_small_talk(text: str) -> bool:
    """Whether the text has no terms left after greetings and the like are removed."""
    return len(text) <= LONGEST_TALK and not tokenizer.terms(_SAID.sub(" ", " ".join(text.split())))
