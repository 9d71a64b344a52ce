"""Twelve agents that are nothing but a prompt, and what people ask them in three languages.

It was written down before anything was tuned to it. Some questions share no word with any description, and small talk
belongs to nobody.
"""

from longhouse.agents.template import MultiAgentMeta, PromptPack, Template

DEFAULT = "sgr_tool_calling_agent"

# A house that serves people in three languages describes its agents in three.
AGENTS = {
    "travel_planner": """
Plans trips: finds flights, trains and hotels, compares prices, writes an itinerary and explains visa rules.
Планирует поездки: подбирает авиабилеты, электрички и гостиницы, составляет маршрут, подсказывает про визы.
规划旅行：查找机票、火车和酒店，比较价格，安排行程，说明签证要求。
""",
    "cook": """
Suggests recipes from what is in the fridge, plans meals for the week, counts calories and writes shopping lists.
Подсказывает рецепты из того, что есть в холодильнике, составляет меню на неделю, считает калории, пишет список покупок.
根据冰箱里的食材推荐菜谱，安排一周的饮食，计算热量，列出购物清单。
""",
    "lawyer": """
Reads contracts, explains clauses, finds legal risks and drafts claims, complaints and powers of attorney.
Читает договоры, объясняет пункты, находит юридические риски, составляет претензии, иски и доверенности.
审阅合同，解释条款，指出法律风险，起草投诉书、起诉状和委托书。
""",
    "accountant": """
Keeps the books of a small company: taxes, invoices, payroll, expense reports and the annual balance sheet.
Ведёт учёт небольшой компании: налоги, счета, зарплата, авансовые отчёты и годовой баланс.
负责小公司的账务：税务、发票、工资、报销和年度资产负债表。
""",
    "health_adviser": """
Explains symptoms, test results and medicines in plain words, and says when to see a doctor. Makes no diagnosis.
Простыми словами объясняет симптомы, анализы и лекарства, подсказывает, когда идти к врачу. Диагнозов не ставит.
用通俗的话解释症状、化验结果和药物，提醒什么时候该看医生，不做诊断。
""",
    "programmer": """
Writes and reviews code in Python, JavaScript and Go, finds bugs, explains stack traces and writes tests.
Пишет и проверяет код на Python, JavaScript и Go, ищет ошибки, объясняет трассировки, пишет тесты.
编写和审查 Python、JavaScript 和 Go 代码，查找错误，解释异常堆栈，编写测试。
""",
    "translator": """
Translates texts between English, Russian, Chinese and German, and keeps tone, terms and layout.
Переводит тексты между английским, русским, китайским и немецким, сохраняя тон, термины и оформление.
在英语、俄语、汉语和德语之间翻译文本，保持语气、术语和版式。
""",
    "editor": """
Edits letters, articles and posts: corrects spelling and style, shortens, finds a headline, rewrites for an audience.
Редактирует письма, статьи и посты: исправляет орфографию и стиль, сокращает, придумывает заголовки.
编辑信件、文章和帖子：修改错别字和文风，缩短篇幅，拟标题，按读者改写。
""",
    "data_analyst": """
Analyses spreadsheets and databases: writes SQL, builds charts and pivot tables, finds trends and outliers.
Анализирует таблицы и базы данных: пишет запросы SQL, строит графики и сводные таблицы, находит тренды и выбросы.
分析表格和数据库：编写 SQL 查询，制作图表和数据透视表，发现趋势和异常值。
""",
    "recruiter": """
Helps with hiring: writes vacancies, screens résumés, prepares interview questions and onboards new employees.
Помогает с наймом: пишет вакансии, отбирает резюме, готовит вопросы для собеседования, вводит новичков в курс дела.
协助招聘：撰写职位描述，筛选简历，准备面试问题，帮助新员工入职。
""",
    "tutor": """
Explains school mathematics, physics and chemistry step by step, checks homework and prepares for exams.
Объясняет школьную математику, физику и химию по шагам, проверяет домашние задания, готовит к экзаменам.
逐步讲解中学数学、物理和化学，检查作业，帮助备考。
""",
    "handyman": """
Advises on repairs at home: leaking taps, wiring, walls and furniture, with a list of tools and materials.
Советует по ремонту дома: протечки, проводка, стены и мебель, со списком инструментов и материалов.
指导家庭维修：漏水、电线、墙面和家具，并列出所需工具和材料。
""",
}

ASKED = """
travel_planner | Find me a cheap flight to Lisbon for the second week of May
travel_planner | Which hotel near the Louvre has a quiet room for two nights?
travel_planner | We have five days in Japan in autumn, what should our route be?
travel_planner | Во сколько последняя из электричек до Твери?
travel_planner | Найди авиабилеты в Стамбул на майские праздники
travel_planner | Хотим на неделю к морю с двумя детьми, куда лучше поехать?
travel_planner | 帮我查一下国庆去昆明的机票
travel_planner | 去日本自由行五天，行程怎么安排
travel_planner | 我想带父母出去玩几天，预算五千
cook | What can I make for dinner from chicken, rice and two peppers?
cook | Plan my meals for next week, no more than 1800 calories a day
cook | My daughter turned vegetarian, what do I put in her lunch box?
cook | Что приготовить на ужин из кабачков и фарша?
cook | Составь меню на неделю для семьи из четырёх человек
cook | Сколько варить гречку, чтобы она не разварилась?
cook | 冰箱里有鸡蛋、西红柿和豆腐，晚饭做什么菜
cook | 给我一份低热量的一周食谱
cook | 红烧肉怎么做才不腻
lawyer | Is the penalty clause in this lease legal?
lawyer | Draft a complaint to the shop that refuses to take back a broken phone
lawyer | My landlord keeps the deposit, what are my rights?
lawyer | Проверь договор аренды, нет ли там рисков для меня
lawyer | Составь претензию застройщику за просрочку сдачи квартиры
lawyer | Сосед затопил квартиру и не хочет платить, можно ли подать в суд?
lawyer | 这份租房合同里有没有对我不利的条款
lawyer | 公司不给我赔偿金，我可以起诉吗
lawyer | 帮我写一份授权委托书
accountant | How much VAT do I owe for the last quarter?
accountant | Make an invoice for 12 hours of consulting
accountant | What can a freelancer deduct when working from home?
accountant | Какие налоги платит ИП на упрощёнке в этом году?
accountant | Посчитай зарплату с учётом отпускных и больничного
accountant | Выставь счёт заказчику за сентябрь
accountant | 小规模纳税人这个季度要交多少税
accountant | 帮我开一张咨询费的发票
accountant | 员工出差的费用怎么报销
health_adviser | My blood test says ferritin 8, what does that mean?
health_adviser | Can I take ibuprofen together with antibiotics?
health_adviser | I have had a headache and a stiff neck since yesterday
health_adviser | Расшифруй анализ крови: гемоглобин 105, лейкоциты 11
health_adviser | Можно ли пить парацетамол вместе с антибиотиками?
health_adviser | Третий день болит горло и температура 38
health_adviser | 化验单上转氨酶偏高是什么意思
health_adviser | 这两种药可以一起吃吗
health_adviser | 孩子发烧咳嗽三天了，要不要去医院
programmer | Why does this Python function raise KeyError?
programmer | Write unit tests for my parser in Go
programmer | The build passes on my laptop and crashes on the server
programmer | Почему этот код на Python падает с ошибкой IndexError?
programmer | Напиши тесты для функции, которая разбирает даты
programmer | Сайт после обновления отвечает 502, что смотреть в логах?
programmer | 这段 JavaScript 代码为什么报错
programmer | 帮我给这个函数写单元测试
programmer | 程序运行一会儿内存就越来越大，怎么回事
translator | Translate this letter into German, please
translator | How do you say "looking forward to it" in Russian?
translator | I need the manual in Chinese by Friday
translator | Переведи инструкцию с китайского на русский
translator | Как будет по-английски «с наступающим»?
translator | Нужен перевод паспорта на немецкий для посольства
translator | 把这封邮件翻译成英语
translator | 这句俄语是什么意思
translator | 请将产品说明书译成德文
editor | Correct the spelling and style of my cover letter
editor | Make this article half as long without losing the point
editor | Give me five headlines for a post about our new office
editor | Проверь орфографию и запятые в этом письме
editor | Сократи статью до тысячи знаков
editor | Сделай этот текст живее, он звучит как отчёт чиновника
editor | 帮我改一下这篇文章的错别字
editor | 给公众号文章起五个标题
editor | 这段话太啰嗦了，精简一点
data_analyst | Write an SQL query for the ten best customers of last month
data_analyst | Build a chart of sales by region from this spreadsheet
data_analyst | Why did our conversion drop in August?
data_analyst | Построй график продаж по регионам из этой таблицы
data_analyst | Напиши запрос SQL: сколько заказов было за март
data_analyst | Найди в данных закономерность: когда чаще всего отменяют подписку?
data_analyst | 写一个 SQL 查询，统计每个城市的订单数
data_analyst | 把这个表格做成按月份的图表
data_analyst | 用户为什么在第三天大量流失，帮我看看数据
recruiter | Write a vacancy for a senior backend developer
recruiter | Which questions should I ask a sales manager in an interview?
recruiter | Compare these two candidates for the position
recruiter | Напиши вакансию кладовщика с графиком два через два
recruiter | Отбери лучшие резюме на должность бухгалтера
recruiter | Какие вопросы задать на собеседовании дизайнеру?
recruiter | 写一个前端工程师的招聘启事
recruiter | 帮我筛选这二十份简历
recruiter | 面试产品经理应该问什么问题
tutor | Explain how to solve quadratic equations, step by step
tutor | Check my physics homework about Newton's second law
tutor | My son has a chemistry test tomorrow and does not understand moles
tutor | Объясни теорему Пифагора на простом примере
tutor | Проверь домашнее задание по физике за восьмой класс
tutor | Как решать задачи на проценты?
tutor | 一元二次方程怎么解，讲一下步骤
tutor | 帮我检查孩子的物理作业
tutor | 下周中考，化学应该怎么复习
handyman | The kitchen tap is leaking, how do I repair it?
handyman | What do I need to hang a heavy shelf on a plasterboard wall?
handyman | My toilet keeps running after every flush
handyman | Течёт кран на кухне, как починить самому?
handyman | Как выровнять стены в старой квартире и чем их потом красить?
handyman | Искрит розетка в спальне, что делать?
handyman | 厨房水龙头漏水怎么修
handyman | 墙面掉皮了要买什么材料修补
handyman | 衣柜门关不严，怎么调整
default | hi
default | Hello there, how are you today?
default | Thanks, that was great!
default | good morning
default | who are you?
default | ok
default | привет
default | как дела?
default | Здравствуйте! Вы тут?
default | спасибо большое, ты супер
default | Доброе утро!
default | ты кто?
default | 你好
default | 早上好，最近怎么样
default | 谢谢你，太棒了
default | 你是谁
default | 在吗
default | 哈哈好的
"""


def templates() -> list[Template]:
    return [
        Template(
            name=name,
            prompt_pack=PromptPack(system_prompt=f"You are {name.replace('_', ' ')}. Answer in the user's language."),
            multi_agent_meta=MultiAgentMeta(capabilities=" ".join(can.split("\n")).strip()),
        )
        for name, can in AGENTS.items()
    ]


def asked() -> list[tuple[str, str]]:
    """Who is right, and what was asked."""
    rows = [line.split(" | ") for line in ASKED.strip().splitlines()]
    return [(DEFAULT if name == "default" else name, text) for name, text in rows]
