"""Tools that are described in Russian or Chinese are found by people who ask in Russian or Chinese."""

import pytest

from longhouse.models import embedding_table
from longhouse.store.database import Database
from search_helpers import found, indexed, tool

# Each line: a tool's name, its description, and what somebody asks who needs it.
RUSSIAN = """
weather_forecast | Прогноз погоды в городе на ближайшие дни | Будет ли завтра дождь, какая погода в Казани?
currency_rates | Курсы валют Центрального банка на выбранную дату | Сколько стоит доллар, покажи курс валюты
send_parcel | Оформляет отправку посылки и считает стоимость доставки | Хочу отправить посылку бабушке в Тверь
train_tickets | Поиск и покупка билетов на поезд между городами | Купи два билета на ночной поезд в Петербург
doctor_visit | Запись на приём к врачу в поликлинику | Запиши меня к врачу на среду
tax_return | Заполняет налоговую декларацию и считает вычет | Помоги заполнить декларацию и вернуть налоговый вычет
recipe_search | Ищет рецепты блюд по списку продуктов | Что приготовить из курицы и риса, найди рецепт
translate_text | Переводит текст с одного языка на другой | Переведи это письмо на немецкий язык
spell_check | Проверяет орфографию и пунктуацию в тексте | Проверь, нет ли ошибок в орфографии моего сочинения
contract_review | Анализирует договоры и находит рискованные условия | Нет ли в договоре аренды опасных условий?
invoice_create | Выставляет счёт на оплату клиенту | Выставь клиенту счёт за ремонт
salary_slip | Формирует расчётный листок по зарплате сотрудника | Покажи мою зарплату и расчётный листок за май
vacation_request | Оформляет заявление на отпуск | Я хочу в отпуск с пятнадцатого июля, подай заявление
meeting_notes | Составляет протокол совещания по записи разговора | Сделай протокол вчерашнего совещания
map_route | Строит маршрут на карте с учётом пробок | Проложи маршрут до аэропорта без пробок
book_library | Ищет книги в библиотеке и продлевает срок выдачи | Продли мне книги в библиотеке
car_service | Записывает автомобиль на техническое обслуживание | Запиши мою машину на обслуживание
news_digest | Собирает сводку новостей по теме | Что нового, собери новости о космосе
photo_archive | Сортирует фотографии по людям и датам | Разложи мои фотографии с отдыха по датам
meter_readings | Передаёт показания счётчиков воды и электричества | Передай показания счётчика горячей воды
"""

CHINESE = """
weather_forecast | 查询城市未来几天的天气预报 | 明天上海会下雨吗，天气怎么样
currency_rates | 查询各国货币的实时汇率 | 现在美元对人民币的汇率是多少
send_parcel | 创建快递订单并计算运费 | 我想寄一个快递到成都
train_tickets | 查询并购买火车票和高铁票 | 帮我买两张去北京的高铁票
doctor_visit | 预约医院门诊挂号 | 帮我预约周三的医院门诊
tax_return | 填写个人所得税申报表并计算退税 | 我要申报个人所得税
recipe_search | 根据食材搜索菜谱 | 家里有鸡肉和土豆，推荐一个菜谱
translate_text | 将文本从一种语言翻译成另一种语言 | 把这封信翻译成法语
spell_check | 检查文章中的错别字和标点符号 | 检查我的作文有没有错别字
contract_review | 审查合同条款并指出法律风险 | 看看这份租房合同有没有风险条款
invoice_create | 为客户开具电子发票 | 请给客户开一张发票
salary_slip | 生成员工的工资条 | 我想看五月份的工资条
vacation_request | 提交员工请假申请 | 我下周要请假三天
meeting_notes | 根据录音生成会议纪要 | 整理一下昨天的会议纪要
map_route | 根据实时路况规划驾车路线 | 规划一条去机场不堵车的路线
book_library | 检索图书馆藏书并办理续借 | 帮我续借图书馆的书
car_service | 预约汽车保养和维修 | 我的汽车该保养了
news_digest | 按主题汇总每日新闻摘要 | 给我一份关于航天的新闻摘要
photo_archive | 按人物和日期整理照片 | 把旅行的照片按日期整理好
meter_readings | 上报水表和电表读数 | 我要上报这个月的电表读数
"""

# The same tools in English, line by line.
ENGLISH = """
Forecasts the weather in a city for the next days
Exchange rates of currencies on a given date
Ships a parcel and calculates the cost of delivery
Searches and buys train tickets between cities
Makes an appointment with a doctor
Fills in an income tax return and calculates the refund
Finds recipes for dishes by a list of ingredients
Translates a text from one language into another
Checks the spelling and punctuation of a text
Reviews contracts and points out risky terms
Issues an invoice to a customer
Makes the pay slip of an employee
Submits a request for leave
Writes the minutes of a meeting from its recording
Plans a driving route on a map around traffic jams
Searches the books of a library and renews loans
Books the maintenance and repair of a car
Collects a digest of news on a topic
Sorts photos by people and dates
Submits the readings of water and electricity meters
"""


def parsed(lines: str) -> list[tuple[str, str, str]]:
    rows = [line.split(" | ") for line in lines.strip().splitlines()]
    return [(name, description, query) for name, description, query in rows]


@pytest.mark.parametrize("lines", [RUSSIAN, CHINESE], ids=["russian", "chinese"])
@pytest.mark.parametrize("has_vectors", [True, False], ids=["words and vectors", "words"])
async def test_a_tool_is_found_in_its_own_language(db: Database, lines: str, has_vectors: bool) -> None:
    rows = parsed(lines)
    assert len(rows) == 20
    # Names in the other language would help a reader of English only: here they say nothing.
    tools = [tool(f"service_{nth}", description) for nth, (_, description, _) in enumerate(rows)]
    others = [
        tool(f"other_{nth}", description)
        for nth, (_, description, _) in enumerate(parsed(RUSSIAN) + parsed(CHINESE))
        if description not in {text for _, text, _ in rows}
    ]
    english = [tool(f"english_{name}", name.replace("_", " ")) for name, _, _ in rows]
    embedder = embedding_table.EmbeddedEmbedder() if has_vectors else None
    finder = await indexed(db, *tools, *others, *english, embedder=embedder)
    hits = [f"service_{nth}" in await found(finder, query, top_k=5) for nth, (_, _, query) in enumerate(rows)]
    assert sum(hits) >= 18, [row[2] for row, hit in zip(rows, hits, strict=True) if not hit]


@pytest.mark.parametrize("lines", [RUSSIAN, CHINESE], ids=["russian", "chinese"])
async def test_a_tool_that_is_described_in_english_is_found_in_other_languages(db: Database, lines: str) -> None:
    """By its vector alone: the two texts share no word."""
    english = [tool(f"service_{nth}", said) for nth, said in enumerate(ENGLISH.strip().splitlines())]
    finder = await indexed(db, *english, embedder=embedding_table.EmbeddedEmbedder())
    rows = parsed(lines)
    hits = [f"service_{nth}" in await found(finder, query, top_k=5) for nth, (_, _, query) in enumerate(rows)]
    assert sum(hits) >= 15, [row[2] for row, hit in zip(rows, hits, strict=True) if not hit]


@pytest.mark.parametrize("query", ["Во сколько последняя из электричек?", "купи авиабилеты", "электричкой быстрее?"])
async def test_other_forms_of_a_russian_word_are_found(db: Database, query: str) -> None:
    finder = await indexed(
        db,
        tool("a", "Расписание: электрички и другие поезда"),
        tool("b", "Билет на самолёт"),
        tool("c", "Рецепты блюд по списку продуктов"),
        tool("d", "Показания счётчика электричества"),
    )
    assert (await found(finder, query))[0] == ("b" if "авиа" in query else "a")
