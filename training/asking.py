"""Descriptions as people would ask for what they describe."""

import random
import re
from typing import Final

WISHES: Final = (
    "Please {wish}.",
    "Can you {wish}?",
    "I want to {wish}.",
    "I need to {wish}.",
    "How do I {wish}?",
    "Could you help me {wish}?",
    "I'm looking for a way to {wish}.",
    "{wish} for me please",
    "Is it possible to {wish}?",
    "Help me {wish}, the id is {number}.",
    "Could you please {wish} for {person}?",
    "{person} asked me to {wish} {day}.",
    "I am in {place} and want to {wish}.",
    "Can you {wish} with a limit of {number}?",
    "Also, {wish}.",
    "We are building an app and need to {wish}.",
    "My company would like to {wish}. What should I use?",
)
THINGS: Final = (
    "I need {wish}.",
    "Is there {wish}?",
    "I am looking for {wish}.",
    "Can you recommend {wish}?",
    "Find me {wish}",
    "What can I use for {wish}?",
    "Tell me about {wish}",
    "Show me {wish} for {person}",
    "Do you have {wish} in {place}?",
)
PEOPLE: Final = ("Maria", "Alice", "Dr. Lee", "Bob", "my sister", "our team", "the customer", "Acme Corp")
PLACES: Final = ("Paris", "New York", "Tokyo", "Berlin", "London", "Beijing", "Moscow")
DAYS: Final = ("tomorrow", "next Friday", "on March 3rd", "this weekend", "by Monday", "today")
_VERBS: Final = """
    add apply attach build calculate call cancel change check clear close compare compute configure connect convert
    copy count create decode define delete deploy describe disable display download edit enable encode execute
    export fetch filter find format generate get grant import install invoke join list load lock make manage map
    merge modify move open parse perform plot print process provide publish put query read register remove rename
    replace request reset resolve restore retrieve return revoke run save scan search select send set show sort
    split start stop store submit subscribe sync tag test track transform translate unlock update upload validate
    verify view wait write
"""
VERBS: Final = frozenset(_VERBS.split())
LONGEST: Final = 180


def asked(description: str, chance: random.Random) -> str:
    """`Returns the weather.` -> `Can you return the weather?`, or another way of asking."""
    wish = _plain(description[:LONGEST])
    form = chance.choice(WISHES if wish.split(" ")[0] in VERBS else THINGS)
    number = str(chance.choice((chance.randint(1, 99), chance.randint(100, 99_999))))
    return form.format(
        wish=wish, number=number, person=chance.choice(PEOPLE), place=chance.choice(PLACES), day=chance.choice(DAYS)
    )


def _plain(description: str) -> str:
    """With the verb as it is after `to`."""
    text = description.strip().rstrip(".。")
    verb, _, rest = (text[:1].lower() + text[1:]).partition(" ")
    for ending, instead in (("ies", "y"), ("shes", "sh"), ("ches", "ch"), ("sses", "ss"), ("s", "")):
        shorter = re.sub(f"{ending}$", instead, verb)
        if shorter != verb and shorter in VERBS:
            verb = shorter
            break
    return f"{verb} {rest}".strip()
