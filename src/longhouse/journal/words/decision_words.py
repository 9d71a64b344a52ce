"""The words of people that decide on a call: a message that is clearly a decision, in English, Russian or Chinese."""

import re
import unicodedata
from typing import Final

from longhouse.journal.events import Decision

# Unambiguous words only: anything else is no decision. Each is in the form that `plain` returns.
WORDS: Final[dict[Decision, str]] = {
    "approve": """
        yes/y/yeah/yep/yes please/ok/o k/okay/yes ok/approve/approved/i approve/approve it/yes approve/confirm/confirmed
        i confirm/agreed/go ahead/yes go ahead
        да/да пожалуйста/ок/окей/да ок/одобряю/да одобряю/одобрить/одобрено/подтверждаю/да подтверждаю/разрешаю
        да разрешаю/согласен/согласна/да согласен/да согласна
        是/是的/好/好的/可以/行/同意/我同意/批准/我批准/确认/確認/允许/允許
    """,
    "deny": """
        no/n/nope/no thanks/no thank you/deny/denied/i deny/deny it/no deny/reject/rejected/i reject/reject it/decline
        declined/refuse/refused/do not/dont/no dont/no do not
        нет/нет спасибо/не надо/нет не надо/не нужно/отклонить/отклоняю/отклонено/запрещаю/не одобряю/нет не одобряю
        не разрешаю/не согласен/не согласна/отказать/отказываю
        不/不是/不行/不要/不可以/不好/不同意/我不同意/不批准/不允许/不允許/否/拒绝/拒絕/我拒绝/我拒絕
    """,
    "happened": """
        happened/it happened/it did happen/yes it happened
        произошло/это произошло/случилось/выполнено
        已发生/发生了/已經發生/已经发生/發生了
    """,
    "did_not_happen": """
        did not happen/it did not happen/didnt happen/it didnt happen/no it did not happen/no it didnt happen
        not happened
        не произошло/этого не произошло/не случилось/не выполнено
        未发生/没发生/没有发生/未發生/沒有發生
    """,
    "give_up": """
        give up/give it up/i give up
        прекратить/прекрати/сдаюсь/оставить как есть
        放弃/放棄
    """,
}


def _meaning(*decisions: Decision) -> dict[str, Decision]:
    """Word -> decision."""
    return {word: one for one in decisions for word in _words(WORDS[one])}


def _words(text: str) -> list[str]:
    return [word for line in text.splitlines() for word in line.strip().split("/") if word]


TRY_AGAIN: Final = """
    try again/try it again/yes try again/yes try it again/again/retry/yes retry
    повторить/повтори/попробовать снова/попробуй снова/ещё раз/еще раз/да ещё раз/да еще раз
    重试/再试/再试一次/重試/再試/再試一次
"""
ON_APPROVAL: Final = _meaning("approve", "deny")
ON_UNCERTAIN: Final = _meaning("happened", "did_not_happen", "give_up")
"""A bare yes or no is no decision here: "no" would run the call again."""
_ON_STEP: Final[dict[Decision, Decision]] = {
    "approve": "did_not_happen",
    "did_not_happen": "did_not_happen",
    "deny": "give_up",
    "give_up": "give_up",
}
ON_STEP: Final[dict[str, Decision]] = {
    **{word: _ON_STEP[one] for word, one in _meaning(*_ON_STEP).items()},
    **dict.fromkeys(_words(TRY_AGAIN), "did_not_happen"),
}
"""For a step that lost its workers the question is whether it is tried again."""

_APOSTROPHE: Final = re.compile("['\u2018\u2019\u02bc`]")
_ORDINARY: Final = re.compile(r"""[\w\s.,:!~*"«»\u2039\u203a„“”‟(){}\[\]「」『』《》〈〉【】。、\u2010-\u2015-]*""")
"""Characters allowed around a decision. Others may negate it, such as a question mark, a cross or ≠."""
_TAKES_BACK: Final = re.compile(r"^\W*[!~]|[!~]\S*\w|(?<![\w!~])~")
"""Before a word, ! and ~ mean not; after one, they are emphasis. Struck-out text has ~ around it."""
_SULKS: Final = re.compile(r":[^\w\s]?[(\[{]|[:({\[「『《〈【][\W_]*$")
"""A sad face takes a yes back; so may whatever a colon or an open bracket at the end was to begin."""


def decision_of(words: str, *, is_uncertain: bool = False, is_step: bool = False, message: str = "") -> Decision | None:
    """The decision that these words are, on a call that waits for approval or on one whose outcome is unknown, or on a
    step that lost its workers.

    `message`: all that was written, if the words are a part of it.
    """
    words = unicodedata.normalize("NFKC", words)
    meaning = ON_STEP if is_step else ON_UNCERTAIN if is_uncertain else ON_APPROVAL
    found = meaning.get(plain(words.casefold()))
    whole = _seen(unicodedata.normalize("NFKC", message or words))
    return None if found != "deny" and _SULKS.search(whole) else found


def plain(text: str) -> str:
    """Normalised words: no punctuation, no invisible characters, single spaces; empty if in doubt."""
    seen = _seen(text)
    if not _ORDINARY.fullmatch(seen) or _TAKES_BACK.search(seen):
        return ""
    return " ".join(re.findall(r"[^\W_]+", seen))


def _seen(text: str) -> str:
    """Text without apostrophes and invisible characters."""
    return "".join(char for char in _APOSTROPHE.sub("", text) if unicodedata.category(char) != "Cf")
