"""Passages of three handbooks, each with a question near its wording, one in other words, and questions that none of
its handbook answers: what the scores of documents are measured on. The first half of each was fitted to, the second
half was held out."""

from typing import Final, NamedTuple


class Pair(NamedTuple):
    passage: str
    near: str
    other: str
    """The same question in other words."""


ENGLISH: Final = (
    Pair(
        "The portable earthing conductor is of copper and has a cross-section of at least 25 square millimetres.",
        "What cross-section must the portable earthing conductor have?",
        "How thick does the ground wire need to be?",
    ),
    Pair(
        "Before work begins, the absence of voltage is proved with a tester that was checked on a live part.",
        "How is the absence of voltage proved before work begins?",
        "How do I make sure that nothing is still energised?",
    ),
    Pair(
        "Ladders stand at an angle of 75 degrees and reach one metre above the upper landing.",
        "At what angle do ladders stand?",
        "How steep should I lean the steps against the wall?",
    ),
    Pair(
        "A claim for travel expenses is handed in within thirty days after the journey, with all receipts.",
        "Within how many days is a claim for travel expenses handed in?",
        "When is the latest that I can ask for my trip money back?",
    ),
    Pair(
        "Food is kept in the refrigerator at no more than five degrees Celsius.",
        "At how many degrees is food kept in the refrigerator?",
        "How cold must meals be stored?",
    ),
    Pair(
        "In case of fire, everybody leaves by the nearest staircase; lifts must not be used.",
        "May lifts be used in case of fire?",
        "The building is burning: how do people get out?",
    ),
    Pair(
        "Passwords have at least fourteen characters and are changed when they may have become known to others.",
        "How many characters must passwords have?",
        "How long should my secret login word be?",
    ),
    Pair(
        "The pump is greased every 500 hours of operation with lithium grease.",
        "How often is the pump greased?",
        "When does the machine need new lubricant?",
    ),
    Pair(
        "Employees have a right to thirty days of paid leave in a calendar year.",
        "How many days of paid leave do employees have?",
        "How much holiday do workers get annually?",
    ),
    Pair(
        "Visitors register at the gate and wear a badge that can be seen.",
        "Where do visitors register?",
        "What must guests do when they arrive?",
    ),
    Pair(
        "Hearing protection is worn where noise exceeds 85 decibels.",
        "From how many decibels is hearing protection worn?",
        "How loud may it be before I have to cover my ears?",
    ),
    Pair(
        "Waste oil is collected in marked barrels and is never poured into the drain.",
        "Where is waste oil collected?",
        "How do I get rid of old lubricants?",
    ),
    Pair(
        "The car park opens at six in the morning and closes at ten in the evening.",
        "When does the car park open?",
        "Until what time can I leave my vehicle there?",
    ),
    Pair(
        "A first-aid box hangs in every workshop, and its contents are checked each quarter.",
        "How often are the contents of the first-aid box checked?",
        "Where are bandages found after an accident?",
    ),
    Pair(
        "Welding within ten metres of gas bottles is forbidden.",
        "How near to gas bottles is welding forbidden?",
        "What distance from cylinders must I keep with a torch?",
    ),
    Pair(
        "A salary is paid on the last working day of the month by bank transfer.",
        "When is the salary paid?",
        "On which date does staff receive wages?",
    ),
    Pair(
        "Backups of all servers are made every night and kept for ninety days.",
        "How long are backups of servers kept?",
        "For what period can lost files be restored?",
    ),
    Pair(
        "Children under twelve ride a bicycle on the pavement and wear a helmet.",
        "Where do children under twelve ride a bicycle?",
        "May small kids cycle on the road?",
    ),
    Pair(
        "The contract may be ended with three months' notice to the end of a quarter, in writing.",
        "With how much notice may the contract be ended?",
        "How early must I cancel the agreement?",
    ),
    Pair(
        "Plants in the hall are watered on Tuesdays and Fridays.",
        "On which days are the plants in the hall watered?",
        "How often do the flowers need a drink?",
    ),
)
RUSSIAN: Final = (
    Pair(
        "Сечение медного провода переносного заземления должно быть не менее 25 квадратных миллиметров.",
        "Какое сечение должно быть у провода переносного заземления?",
        "Насколько толстым нужен кабель для земли?",
    ),
    Pair(
        "Перед началом работ отсутствие напряжения проверяют указателем, исправность которого проверена заранее.",
        "Как проверяют отсутствие напряжения перед началом работ?",
        "Как убедиться, что ток отключён?",
    ),
    Pair(
        "Приставная лестница устанавливается под углом 75 градусов и выступает на метр выше площадки.",
        "Под каким углом устанавливается приставная лестница?",
        "Как круто поставить стремянку к стене?",
    ),
    Pair(
        "Отчёт о командировочных расходах сдают в течение тридцати дней после поездки вместе с чеками.",
        "В течение скольких дней сдают отчёт о командировочных расходах?",
        "До какого срока можно вернуть деньги за дорогу?",
    ),
    Pair(
        "Продукты хранят в холодильнике при температуре не выше пяти градусов.",
        "При какой температуре хранят продукты в холодильнике?",
        "Насколько холодно должно быть еде?",
    ),
    Pair(
        "При пожаре все выходят по ближайшей лестнице; пользоваться лифтом запрещено.",
        "Можно ли пользоваться лифтом при пожаре?",
        "Здание горит: как людям выбраться наружу?",
    ),
    Pair(
        "Пароль состоит не менее чем из четырнадцати знаков и меняется, если он мог стать известен другим.",
        "Из скольких знаков состоит пароль?",
        "Какой длины должно быть секретное слово для входа?",
    ),
    Pair(
        "Насос смазывают литиевой смазкой каждые 500 часов работы.",
        "Как часто смазывают насос?",
        "Когда машине требуется новое масло?",
    ),
    Pair(
        "Работники имеют право на двадцать восемь дней оплачиваемого отпуска в год.",
        "Сколько дней оплачиваемого отпуска имеют работники?",
        "Как долго сотрудник может отдыхать летом?",
    ),
    Pair(
        "Посетители регистрируются на проходной и носят пропуск на видном месте.",
        "Где регистрируются посетители?",
        "Что делать гостям по прибытии?",
    ),
    Pair(
        "Защиту слуха надевают там, где шум превышает 85 децибел.",
        "При скольких децибелах надевают защиту слуха?",
        "Насколько громко может быть без наушников?",
    ),
    Pair(
        "Отработанное масло собирают в помеченные бочки и никогда не сливают в канализацию.",
        "Куда собирают отработанное масло?",
        "Как избавиться от старой смазки?",
    ),
    Pair(
        "Стоянка открывается в шесть утра и закрывается в десять вечера.",
        "Когда открывается стоянка?",
        "До которого часа можно оставить машину?",
    ),
    Pair(
        "Аптечка висит в каждом цехе, её содержимое проверяют раз в квартал.",
        "Как часто проверяют содержимое аптечки?",
        "Где найти бинты после травмы?",
    ),
    Pair(
        "Сварка ближе десяти метров от газовых баллонов запрещена.",
        "На каком расстоянии от газовых баллонов запрещена сварка?",
        "Как далеко держать горелку от ёмкостей с пропаном?",
    ),
    Pair(
        "Зарплату перечисляют на счёт в последний рабочий день месяца.",
        "Когда перечисляют зарплату?",
        "Какого числа сотрудники получают деньги?",
    ),
    Pair(
        "Резервные копии всех серверов делают каждую ночь и хранят девяносто дней.",
        "Сколько дней хранят резервные копии серверов?",
        "За какой период можно восстановить потерянные файлы?",
    ),
    Pair(
        "Дети до двенадцати лет ездят на велосипеде по тротуару и в шлеме.",
        "Где ездят на велосипеде дети до двенадцати лет?",
        "Можно ли малышам кататься по проезжей части?",
    ),
    Pair(
        "Договор расторгают письменно, предупредив за три месяца до конца квартала.",
        "За сколько месяцев предупреждают, если договор расторгают?",
        "Как рано надо отказаться от соглашения?",
    ),
    Pair(
        "Растения в холле поливают по вторникам и пятницам.",
        "По каким дням поливают растения в холле?",
        "Как часто цветам нужна вода?",
    ),
)
CHINESE: Final = (
    Pair("携带型接地线应使用截面不小于25平方毫米的软铜线。", "携带型接地线的截面应不小于多少?", "地线要多粗?"),
    Pair("工作开始前，应使用检验合格的验电器确认设备无电压。", "工作开始前如何确认设备无电压?", "怎样知道电已经断了?"),
    Pair("梯子应以75度角放置，并高出上层平台一米。", "梯子应以多少度角放置?", "靠墙时梯子放多陡才安全?"),
    Pair(
        "差旅费报销应在出差结束后三十天内连同全部票据提交。",
        "差旅费报销应在多少天内提交?",
        "出门花的钱最晚什么时候能要回来?",
    ),
    Pair("食品应在冰箱中以不高于五摄氏度的温度保存。", "食品在冰箱中以多少度保存?", "饭菜要放得多冷?"),
    Pair("发生火灾时，所有人员从最近的楼梯撤离，禁止使用电梯。", "发生火灾时可以使用电梯吗?", "楼着火了怎么逃出去?"),
    Pair("密码至少有十四个字符，可能泄露时必须更换。", "密码至少有多少个字符?", "登录口令要多长?"),
    Pair("水泵每运行500小时应加注锂基润滑脂。", "水泵每运行多少小时加注润滑脂?", "机器多久上一次油?"),
    Pair("职工每年享有十五天带薪休假。", "职工每年享有多少天带薪休假?", "员工一年能放几天假?"),
    Pair("来访人员在门卫处登记，并佩戴明显的证件。", "来访人员在哪里登记?", "客人到了以后要做什么?"),
    Pair("噪声超过85分贝的场所应佩戴听力防护用品。", "噪声超过多少分贝应佩戴听力防护用品?", "多吵的地方要戴耳塞?"),
    Pair("废油应收集在有标记的桶中，严禁倒入下水道。", "废油应收集在哪里?", "旧的润滑油怎么处理?"),
    Pair("停车场早上六点开放，晚上十点关闭。", "停车场几点开放?", "车最晚可以停到什么时候?"),
    Pair("每个车间都挂有急救箱，每季度检查一次其中的物品。", "急救箱多久检查一次?", "受伤了去哪里找绷带?"),
    Pair("距气瓶十米以内禁止焊接。", "距气瓶多少米以内禁止焊接?", "用焊枪要离瓶子多远?"),
    Pair("工资在每月最后一个工作日通过银行转账发放。", "工资在每月什么时候发放?", "员工几号能拿到钱?"),
    Pair("所有服务器每晚备份，备份保存九十天。", "服务器的备份保存多少天?", "丢失的文件多久以内还能恢复?"),
    Pair("十二岁以下儿童骑自行车应走人行道并戴头盔。", "十二岁以下儿童骑自行车走哪里?", "小孩可以在马路上骑车吗?"),
    Pair("合同可在季度末前三个月以书面形式解除。", "合同可在多少个月前解除?", "想取消协议要多早通知?"),
    Pair("大厅里的植物在星期二和星期五浇水。", "大厅里的植物在星期几浇水?", "花多久要喝一次水?"),
)
HANDBOOKS: Final = {"en": ENGLISH, "ru": RUSSIAN, "zh": CHINESE}
UNANSWERED: Final = {
    "en": (
        "Who won the football match yesterday?",
        "How far is the moon from the earth?",
        "Which spices belong in a curry?",
        "What is the capital of Australia?",
        "How do I train a dog to sit?",
        "Who wrote the opera about the barber?",
        "What are the symptoms of influenza?",
        "How is the price of a share computed?",
    ),
    "ru": (
        "Кто выиграл вчерашний футбольный матч?",
        "Как далеко Луна от Земли?",
        "Какие пряности кладут в плов?",
        "Какой город столица Австралии?",
        "Как научить собаку сидеть?",
        "Кто написал оперу о цирюльнике?",
        "Каковы признаки гриппа?",
        "Как считают цену акции?",
    ),
    "zh": (
        "昨天的足球比赛谁赢了?",
        "月亮离地球有多远?",
        "咖喱里放哪些香料?",
        "澳大利亚的首都是哪里?",
        "怎样训练狗坐下?",
        "谁写了关于理发师的歌剧?",
        "流感的症状是什么?",
        "股票的价格怎么计算?",
    ),
}
