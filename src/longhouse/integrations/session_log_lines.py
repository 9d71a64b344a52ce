"""The lines of a session log in English, Russian and Chinese."""

from typing import Final, Literal

Language = Literal["en", "ru", "zh"]
Line = Literal["request", "saved", "loaded", "empty", "task", "answer"]

RULE: Final = "=" * 80
SHOWN: Final = 100
"""Characters of a text that are shown."""

WORDS: Final[dict[Language, dict[Line, str]]] = {
    "en": {
        "request": "📥 NEW REQUEST from the user: {text}...",
        "saved": "✅ The user's message is saved in Redis",
        "loaded": "📚 History of sub-agent '{name}' loaded: {count} messages",
        "empty": "   📭 The sub-agent's history is empty",
        "task": "💾 Task for the sub-agent saved: {text}...",
        "answer": "💾 Final answer of the sub-agent saved: {text}...",
    },
    "ru": {
        "request": "📥 НОВЫЙ ЗАПРОС от пользователя: {text}...",
        "saved": "✅ Сообщение пользователя сохранено в Redis",
        "loaded": "📚 История подагента '{name}' загружена: {count} сообщений",
        "empty": "   📭 История подагента пуста",
        "task": "💾 Задача для подагента сохранена: {text}...",
        "answer": "💾 Финальный ответ подагента сохранён: {text}...",
    },
    "zh": {
        "request": "📥 用户的新请求: {text}...",
        "saved": "✅ 用户消息已保存到 Redis",
        "loaded": "📚 子代理 '{name}' 的历史已加载: {count} 条消息",
        "empty": "   📭 子代理的历史为空",
        "task": "💾 子代理的任务已保存: {text}...",
        "answer": "💾 子代理的最终回答已保存: {text}...",
    },
}


def line(language: Language, kind: Line, *, text: str = "", name: str = "", count: int = 0) -> str:
    return WORDS[language][kind].format(text=text[:SHOWN], name=name, count=count)
