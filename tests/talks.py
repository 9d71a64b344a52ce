"""Three long talks of two people, in English, Russian and Chinese: scenes with questions, among much other talk.

The questions are in other words than the answers, and an answer is often a turn that makes sense only after the one
before it. Small talk and scenes about like things stand between them.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

Question = tuple[str, tuple[int, ...]]
Scene = tuple[Sequence[str], Sequence[Question]]
"""What two people say by turns, and questions with the turns that hold the answer; `>` marks a scene that the second
of them begins."""


@dataclass(frozen=True)
class Talk:
    name: str
    people: tuple[str, str]
    scenes: Sequence[Scene]
    chatter: Sequence[tuple[str, str]]
    """What is said between scenes, with places for words."""
    words: str
    """The words that chatter is about."""


ENGLISH = Talk(
    "nora-theo",
    ("Nora", "Theo"),
    (
        (
            (
                "Hey Theo! I finally did it, I signed up for the pottery class at the community center.",
                "That's awesome! What made you pick pottery of all things?",
                "My grandmother used to throw bowls, and I wanted something calm to do with my hands after work.",
                "Love that. When does it start?",
                "First lesson was yesterday, actually. My bowl collapsed twice.",
            ),
            (
                ("When did Nora have her first pottery lesson?", (4,)),
                ("What happened to the bowl Nora made in her pottery class?", (4,)),
                ("When did Nora begin her ceramics course?", (4,)),
                ("Why did Nora choose pottery as a hobby?", (2,)),
                ("Who in Nora's family made bowls?", (2,)),
            ),
        ),
        (
            (
                "How is Biscuit doing after the surgery?",
                "Much better, thanks. The vet took the stitches out on Monday and he's already chasing squirrels.",
                "Poor boy. Was it the left leg again?",
                "No, this time it was the right knee, a torn ligament.",
            ),
            (
                ("How is Biscuit doing after his surgery?", (1,)),
                ("What did the vet do on Monday?", (1,)),
                ("What injury did Theo's dog have?", (3,)),
                ("When were the stitches of Theo's pet removed?", (1,)),
            ),
        ),
        (
            (
                "Guess where I am writing from? A tiny cabin above Lake Bled!",
                "No way, Slovenia! Are you there with your sister?",
                "Yes, Ingrid flew in from Stockholm to join me. We rowed to the island this morning.",
                "Send me pictures! How long are you staying?",
                "Nine days, then we take the train to Trieste.",
            ),
            (
                ("What did Nora and Ingrid do on the island at Lake Bled?", (2,)),
                ("How long is Nora staying at Lake Bled?", (4,)),
                ("Which country did Nora travel to with her sister?", (1, 0)),
                ("Where does Nora's sister live?", (2,)),
                ("How many days did Nora spend at the lake?", (4,)),
            ),
        ),
        (
            (
                "I've been meaning to tell you, I handed in my notice at the insurance company.",
                "Wow, Nora. What are you going to do instead?",
                "I'm going to retrain as a nurse. The program begins in September and takes three years.",
                "That suits you so well. You were always the one with the bandages.",
            ),
            (
                ("When does Nora's program to become a nurse begin?", (2,)),
                ("When did Nora leave the insurance company?", (0,)),
                ("What career change is Nora planning?", (2,)),
                ("Which job did Nora quit?", (0,)),
                ("How long will Nora's nursing studies take?", (2,)),
            ),
        ),
        (
            (
                "Did you decide about the car?",
                "Yeah, I ended up going with the green one. The dealer threw in winter tyres.",
                "Used or new?",
                "Used, 2019, forty thousand kilometres. It was 11,500 in the end.",
            ),
            (
                ("Did Theo buy a used or a new car?", (3,)),
                ("What did the dealer give Theo with the green car?", (1,)),
                ("What colour is the car that Theo bought?", (1,)),
                ("How much did Theo pay for his vehicle?", (3,)),
            ),
        ),
        (
            (
                "Theo, is everything okay? You sounded down on the phone.",
                "My dad had a mild stroke last week. He's home now but he has trouble finding words.",
                "Oh no, I'm so sorry. Is your mom coping?",
                "She is, mostly. I drive over every Sunday to give her a break.",
            ),
            (
                ("When did Theo's dad have a stroke?", (1,)),
                ("What does Theo do every Sunday?", (3,)),
                ("What happened to Theo's father?", (1,)),
                ("On which day of the week does Theo visit his parents?", (3,)),
            ),
        ),
        (
            (
                "I baked the sourdough from your recipe and it was flat as a pancake.",
                "Ha! Did you let it rise overnight in the fridge?",
                "I was supposed to? I gave it two hours on the counter.",
                "Twelve hours in the cold, at least. That's the whole secret.",
            ),
            (
                ("How did Nora's sourdough turn out?", (0,)),
                ("How long did Nora let the sourdough rise?", (2,)),
                ("How long should the bread dough rest according to Theo?", (3,)),
                ("What went wrong with Nora's loaf?", (0, 2)),
            ),
        ),
        (
            (
                "My book club picked The Left Hand of Darkness for this month.",
                "One of my favourites! Ursula Le Guin taught me to love science fiction.",
                "I'm struggling with the names, but the ice journey part got me.",
                "Wait for the ending. I cried on the tram.",
            ),
            (
                ("Which book did Nora's book club pick?", (0,)),
                ("What does Theo think of Ursula Le Guin?", (1,)),
                ("Which novel is Nora's reading group discussing?", (0,)),
                ("Who is the author that made Theo a fan of sci-fi?", (1,)),
                ("Where did Theo weep over a book?", (3,)),
            ),
        ),
        (
            (
                "The landlord is raising the rent again, by twelve percent.",
                "That's outrageous. Can he even do that?",
                "The tenants' union says no. I have an appointment with their lawyer on the 14th.",
                "Good. Don't sign anything before then.",
            ),
            (
                ("What does the tenants' union say about Nora's rent?", (2,)),
                ("Who is raising Nora's rent?", (0,)),
                ("By how much does Nora's rent go up?", (0,)),
                ("When does Nora meet a lawyer?", (2,)),
            ),
        ),
        (
            (
                "You won't believe it: my quartet got the gig at the harbour festival!",
                "Congratulations! You're still on the cello, right?",
                "Viola, since March. Pia moved away, so somebody had to switch.",
                "Which day do you play?",
                "Saturday evening, right after the shanty choir.",
            ),
            (
                ("When did Nora's quartet play at the harbour festival?", (4,)),
                ("Since when does Nora play the viola?", (2,)),
                ("What instrument does Nora play now?", (2,)),
                ("At what event will Nora's string ensemble perform?", (0,)),
                ("Why did Nora change her instrument?", (2,)),
            ),
        ),
        (
            (
                "I've been running again, three times a week, along the canal.",
                "Training for something?",
                "The half marathon in Porto in October. Don't laugh.",
                "I would never! What time are you hoping for?",
                "Anything under two hours ten would make me happy.",
            ),
            (
                ("When is the half marathon that Nora trains for?", (2,)),
                ("Where does Nora go running three times a week?", (0,)),
                ("In which city is the race that Nora prepares for?", (2,)),
                ("What is Nora's target time?", (4,)),
                ("How often does Nora go jogging?", (0,)),
            ),
        ),
        (
            (
                "Do you remember the mushroom place near the old mill? We found chanterelles there on Sunday.",
                "You're joking! How many?",
                "Almost two kilos. I made a risotto and froze the rest.",
                "Next time you are taking me along.",
            ),
            (
                (
                    "How many mushrooms did Nora find near the old mill?",
                    (
                        0,
                        2,
                    ),
                ),
                ("What did Nora make with the mushrooms?", (2,)),
                ("Where did Nora pick mushrooms?", (0,)),
                ("What dish did Nora cook with the chanterelles?", (2,)),
            ),
        ),
        (
            (
                "How did the interview go?",
                "Better than I feared. They asked about the bridge project and I could talk for an hour.",
                "And? When will you hear from them?",
                "By the end of the month. There's one other candidate, from Lisbon.",
            ),
            (
                ("How did Theo's interview go?", (1,)),
                ("When will Theo hear about the job?", (3,)),
                ("What did Theo talk about at his job interview?", (1,)),
                ("Where does the competing applicant come from?", (3,)),
            ),
        ),
        (
            (
                ">They called! I start as lead engineer in January.",
                "Theo!!! I'm so proud of you! We have to celebrate.",
                "Dinner at the Georgian restaurant? My treat.",
                "Yes please. I've been dreaming of their khachapuri.",
            ),
            (
                ("When does Theo start as lead engineer?", (0,)),
                ("Where do Nora and Theo go for dinner to celebrate?", (2,)),
                ("What position was Theo offered?", (0,)),
                ("What food is Nora looking forward to?", (3,)),
                ("When does Theo's new job begin?", (0,)),
            ),
        ),
        (
            (
                "I'm allergic to hazelnuts, it turns out. My whole face swelled up at Lena's wedding.",
                "That sounds terrifying. Did you have to go to hospital?",
                "Emergency room, one injection, home by midnight. I carry a pen with me now.",
                "No more nougat for you then.",
            ),
            (
                ("What happened to Nora at Lena's wedding?", (0,)),
                ("What did they do with Nora in the emergency room?", (2,)),
                ("What is Nora allergic to?", (0,)),
                ("At whose marriage celebration did Nora fall ill?", (0,)),
                ("What does Nora always have on her since the allergic shock?", (2,)),
            ),
        ),
        (
            (
                ">My niece was born on Friday! Seven pounds, lots of black hair.",
                "Congratulations, uncle! What did they call her?",
                "Matilda, after our grandmother.",
                "Beautiful. I'll knit something tiny.",
            ),
            (
                ("When was Theo's niece born?", (0,)),
                ("What will Nora knit?", (3,)),
                ("What is the name of Theo's niece?", (2,)),
                ("Who was Theo's brother's or sister's child named after?", (2,)),
            ),
        ),
        (
            (
                "The choir trip is cancelled, half of the altos have the flu.",
                "What a shame. You were so looking forward to Vienna.",
                "They moved it to the second weekend of May, so not all is lost.",
                "Then you can see the lilacs.",
            ),
            (
                (
                    "When is the choir trip to Vienna?",
                    (
                        2,
                        1,
                    ),
                ),
                ("Why is the choir trip cancelled?", (0,)),
                ("Why was Nora's trip called off?", (0,)),
                ("To when was the journey to Vienna postponed?", (2,)),
            ),
        ),
        (
            (
                ">I put solar panels on the roof of the shed. Four of them.",
                "Really? Did you do it alone?",
                "My neighbour Osman helped, he's an electrician. It charges the bike and the drill.",
                "You'll be off the grid before we know it.",
            ),
            (
                ("How many solar panels does Theo have on the roof of the shed?", (0,)),
                ("What is the job of Theo's neighbour Osman?", (2,)),
                ("Who assisted Theo with the photovoltaic installation?", (2,)),
                ("What does Theo power with the sun?", (2,)),
            ),
        ),
        (
            (
                "Ugh, I lost my passport somewhere between the airport and the hotel.",
                "Oh no. Did you go to the embassy?",
                "Tomorrow at nine. They need two photos and sixty euros.",
                "At least you kept a copy, I hope?",
                "Yes, you told me to, years ago!",
            ),
            (
                ("Where did Nora lose her passport?", (0,)),
                ("When does Nora go to the embassy about her passport?", (2,)),
                ("Which document went missing on Nora's trip?", (0,)),
                ("What does the embassy require of Nora?", (2,)),
            ),
        ),
        (
            (
                ">We adopted a second dog. She's a deaf old spaniel called Mabel.",
                "You have the biggest heart. How does Biscuit take it?",
                "He sulked for two days and now they share the sofa.",
                "Does she know hand signs?",
                "Sit, come and no. The shelter taught her.",
            ),
            (
                ("What is the name of the second dog that Theo adopted?", (0,)),
                ("Who taught Mabel hand signs?", (4,)),
                ("What breed is the new dog in Theo's household?", (0,)),
                ("How did the first dog react to the newcomer?", (2,)),
                ("Which commands does Mabel understand?", (4,)),
            ),
        ),
        (
            (
                "The anatomy exam nearly killed me, but I passed!",
                "I knew it! What was the grade?",
                "Eighty-seven. The bones of the hand cost me the rest.",
                "Scaphoid, lunate... I would have failed at the first.",
            ),
            (
                ("What grade did Nora get in the anatomy exam?", (2,)),
                ("Did Nora pass her anatomy exam?", (0,)),
                ("How well did Nora do in her anatomy test?", (2, 0)),
                ("Which body part was hardest for Nora in the exam?", (2,)),
            ),
        ),
        (
            (
                ">Thinking of painting the kitchen. Yellow or a pale grey?",
                "Yellow! You complained about dark mornings all last winter.",
                "True. Lemon it is. Can I borrow your ladder?",
                "Sure, pick it up on Thursday after six.",
            ),
            (
                ("When can Theo pick up the ladder?", (3,)),
                ("Why should Theo paint the kitchen yellow?", (1,)),
                ("What colour did Theo choose for his kitchen walls?", (2,)),
                ("What did Theo want to borrow from Nora?", (2,)),
            ),
        ),
    ),
    (
        (
            "Good morning! How was your {} in the end, did it go well?",
            "Not bad, thanks, a bit of trouble with the {} as always. How are you doing?",
        ),
        (
            "Did you see what they wrote about the {} in the paper this week?",
            "I did, and my whole office talks of nothing else now, {} here and {} there.",
        ),
        (
            "Honestly, I'm getting so tired of this {}, it never ends.",
            "I hear you. Let's hope that the {} gets a little easier by spring.",
        ),
        (
            "Haha, that reminds me of the {} we had when we were students.",
            "Oh yes! I still tell people about it, what a {} that was.",
        ),
        ("I should go now, the {} is waiting for me and I'm late.", "Sure, take care of yourself and enjoy the {}!"),
        (
            "Are you free at the weekend? I was thinking of a little {} with some friends.",
            "Let me check, I promised my cousin that I'd help with the {}.",
        ),
        (
            "My colleague told me the funniest story about her {} today.",
            "Tell me everything, you know how I love a good {} story.",
        ),
        (
            "Thank you for listening when I complained about the {} the other day.",
            "Always, that's what friends are for. How is the {} now?",
        ),
        (
            "I spent the whole evening on the sofa with a blanket and an old film about a {}.",
            "That sounds perfect, I fell asleep over my {} again.",
        ),
        (
            "What would you do if you could start again, with the {} and everything?",
            "Probably the same, only with less worry about the {}.",
        ),
        (
            "The new people upstairs are so loud, some {} every single night.",
            "Have you talked to them? I'd bring a {} and be friendly first.",
        ),
        (
            "It's raining again, so the {} will have to wait until next month.",
            "Same here, we moved our {} to the cellar because of the water.",
        ),
        (
            "I tried to call you but the line was busy, was it about the {}?",
            "Yes, my aunt rang, and with her a {} takes an hour.",
        ),
        (
            "You always know how to cheer me up when I think about the {}.",
            "Anytime! Remember how the {} turned out fine, too.",
        ),
    ),
    "week commute weather meeting garden coffee neighbour holiday laundry concert film match "
    "storm bus market phone party dentist sister job trip dog evening office weekend cinema "
    "sofa heating parcel football",
)

RUSSIAN = Talk(
    "olga-pavel",
    ("Ольга", "Павел"),
    (
        (
            (
                "Представляешь, я всё-таки записалась на курсы вождения!",
                "Наконец-то! Ты же боялась садиться за руль после той аварии.",
                "Инструктор очень спокойный, зовут Рустам. Первое занятие было во вторник.",
                "Ну, держись. К лету будешь возить нас на дачу.",
            ),
            (
                ("Когда было первое занятие у Ольги на курсах вождения?", (2,)),
                ("Как зовут человека, который учит Ольгу водить машину?", (2,)),
                ("Почему Ольга раньше не водила?", (1,)),
            ),
        ),
        (
            (
                "Как бабушка? Ты говорил, она лежит в больнице.",
                "Выписали в пятницу. Перелом шейки бедра, теперь ходит с палочкой.",
                "Слава богу. Кто за ней ухаживает?",
                "Тётя Вера переехала к ней на месяц.",
            ),
            (
                ("Когда бабушку Павла выписали из больницы?", (1,)),
                ("Какую травму получила бабушка Павла?", (1,)),
                ("Кто помогает старушке дома?", (3,)),
            ),
        ),
        (
            (
                "Мы едем на Байкал! Билеты уже куплены.",
                "Зимой? Там же минус тридцать.",
                "Зато лёд прозрачный. Вылетаем восьмого февраля, вернёмся через десять дней.",
                "Возьми валенки, серьёзно.",
            ),
            (
                (
                    "Когда Ольга едет на Байкал?",
                    (
                        2,
                        0,
                    ),
                ),
                ("Когда Ольга улетает на озеро?", (2,)),
                ("Какую обувь советует взять Павел?", (3,)),
                ("Сколько продлится поездка Ольги?", (2,)),
            ),
        ),
        (
            (
                "Ты всё ещё ищешь квартиру?",
                "Нашёл! Двушка на Васильевском, окна во двор, тридцать восемь тысяч в месяц.",
                "Дороговато. А кота хозяйка разрешила?",
                "Разрешила, у неё самой трое.",
            ),
            (
                ("Где Павел нашёл квартиру?", (1,)),
                ("Сколько Павел платит за жильё?", (1,)),
                ("Можно ли держать животное в новой квартире Павла?", (3,)),
            ),
        ),
        (
            (
                "Мой сын решил поступать в консерваторию.",
                "На скрипку?",
                "Нет, на кларнет. Экзамены в июле, он занимается по шесть часов.",
                "Передай ему, что я приду на первый концерт.",
            ),
            (
                ("Куда решил поступать сын Ольги?", (0,)),
                ("На каком инструменте играет сын Ольги?", (2,)),
                ("Когда вступительные испытания у сына Ольги?", (2,)),
            ),
        ),
        (
            (
                "Попробовала твой рецепт борща, получилось слишком кисло.",
                "Ты уксус клала сразу?",
                "Да, вместе со свёклой, две ложки.",
                "Надо одну, и в самом конце. Тогда цвет останется.",
            ),
            (
                ("Какой получился борщ по рецепту Павла?", (0,)),
                ("Что не так вышло с супом у Ольги?", (0,)),
                ("Сколько уксуса нужно добавлять по словам Павла?", (3,)),
            ),
        ),
        (
            (
                "Меня повысили! Теперь я заведую отделом переводов.",
                "Поздравляю! Сколько у тебя подчинённых?",
                "Семеро, и двое в Казани на удалёнке.",
                "С тебя торт.",
            ),
            (
                ("Каким отделом теперь заведует Ольга?", (0,)),
                ("Какую должность получила Ольга?", (0,)),
                ("Сколько сотрудников работает под началом Ольги?", (2,)),
            ),
        ),
        (
            (
                ">Опять украли велосипед, прямо из подъезда.",
                "Кошмар. Ты заявление написал?",
                "Написал, но участковый сказал, что надежды мало. Куплю складной, буду носить домой.",
                "Правильно, мой уже третий год цел.",
            ),
            (
                ("Откуда украли велосипед Павла?", (0,)),
                ("Что пропало у Павла?", (0,)),
                ("Какой велосипед Павел хочет приобрести?", (2,)),
            ),
        ),
    ),
    (
        ("Привет! Как прошла {}?", "Да обычно, {} и снова {}. А у тебя?"),
        ("Слышал новости про {}?", "Слышал, все только и говорят про {}."),
        ("Ох, надоела эта {}.", "И не говори, скорее бы закончилась {}."),
        ("Помнишь, какая у нас была {}?", "Ещё бы, такая {} не забывается!"),
        ("Ладно, побежала, ждёт {}.", "Давай, удачи, пусть {} пройдёт хорошо."),
    ),
    "неделя погода работа дорога встреча дача уборка пробка зима очередь поездка учёба музыка еда машина",
)

CHINESE = Talk(
    "lihua-wangqiang",
    ("李华", "王强"),
    (
        (
            (
                "我终于报名学游泳了，就在学校旁边的体育馆。",
                "太好了！你不是一直怕水吗？",
                "是啊，小时候掉进过河里。教练姓陈，特别有耐心。",
                "加油，夏天我们一起去青岛的海边。",
            ),
            (
                ("李华在哪里学游泳？", (0,)),
                ("李华为什么害怕水？", (2,)),
                ("教李华游泳的人姓什么？", (2,)),
                ("他们打算夏天去哪座城市？", (3,)),
            ),
        ),
        (
            (
                "你爷爷的病好点了吗？",
                "好多了，上周三做完白内障手术，现在能看报纸了。",
                "真不容易。谁在照顾他？",
                "我姑姑请了一个月的假。",
            ),
            (
                ("王强的爷爷什么时候做的手术？", (1,)),
                ("王强的爷爷做了什么手术？", (1,)),
                ("老人由谁照料？", (3,)),
            ),
        ),
        (
            (
                "我决定辞职了，准备开一家面包店。",
                "这么突然？资金够吗？",
                "攒了二十万，再向银行贷十五万。店面在南京路。",
                "开业那天我一定去捧场。",
            ),
            (
                ("李华的面包店开在哪里？", (2,)),
                ("李华打算做什么生意？", (0,)),
                ("李华需要借多少钱？", (2,)),
                ("店铺开在哪条街上？", (2,)),
            ),
        ),
        (
            (
                "我家的猫昨天生了四只小猫！",
                "恭喜恭喜，都是什么颜色的？",
                "两只橘色，一只黑的，还有一只三花。",
                "那只黑的能不能留给我？",
            ),
            (
                ("李华家的猫生了几只小猫？", (0,)),
                ("王强想要哪只小猫？", (3,)),
                ("李华家里新添了几只小动物？", (0,)),
            ),
        ),
        (
            (
                "期末考试成绩出来了，我数学只考了七十一分。",
                "已经及格了呀，英语呢？",
                "英语九十三，全班第二名。",
                "厉害，那你教教我语法吧。",
            ),
            (
                ("李华数学考了多少分？", (0,)),
                ("李华的外语成绩怎么样？", (2,)),
                ("王强请李华帮忙学什么？", (3,)),
            ),
        ),
        (
            (
                "上个周末我去爬黄山了，看到了日出。",
                "坐缆车还是自己走上去的？",
                "走了五个小时，膝盖现在还疼。",
                "下次带上登山杖。",
            ),
            (
                ("李华什么时候去爬黄山？", (0,)),
                ("李华爬山以后哪里不舒服？", (2,)),
                ("王强建议准备什么装备？", (3,)),
            ),
        ),
    ),
    (
        ("早上好，昨天的{}怎么样？", "还行吧，就是{}有点多。你呢？"),
        ("你看到关于{}的新闻了吗？", "看到了，大家都在说{}。"),
        ("最近的{}真让人头疼。", "是啊，希望{}快点好起来。"),
        ("哈哈，这让我想起以前的{}。", "对，那次的{}太好玩了！"),
        ("我先去忙{}了，回头聊。", "好的，{}顺利！"),
    ),
    "天气 会议 作业 晚饭 电影 比赛 地铁 快递 工作 聚会 旅行 考试 音乐 邻居 手机",
)

TALKS = (ENGLISH, RUSSIAN, CHINESE)


def turns_and_questions(
    talks: Sequence[Talk] = TALKS, *, chatter: int = 10, seed: int = 5
) -> tuple[list[dict[str, str]], list[dict[str, object]]]:
    """The lines of two files for `longhouse bench recall`: all turns in dated sessions, and all questions.

    `chatter`: the pairs of turns without meaning after each scene.
    """
    turns: list[dict[str, str]] = []
    questions: list[dict[str, object]] = []
    for talk in talks:
        chance, at = random.Random(seed), datetime(2023, 1, 9, 18, 30, tzinfo=UTC)
        for session, (said, asked) in enumerate(talk.scenes, 1):
            begins = said[0].startswith(">")
            lines = [
                *_chatter(talk, chance, chatter // 2),
                *(text.removeprefix(">") for text in said),
                *_chatter(talk, chance, chatter - chatter // 2),
            ]
            first = 2 * (chatter // 2)
            turns.extend(
                {
                    "id": f"D{session}:{nth + 1}",
                    "text": text,
                    "speaker": talk.people[(nth + begins) % 2],
                    "conversation": talk.name,
                    "session": str(session),
                    "at": at.isoformat(),
                }
                for nth, text in enumerate(lines)
            )
            questions.extend(
                {
                    "question": text,
                    "turns": [f"D{session}:{first + nth + 1}" for nth in there],
                    "conversation": talk.name,
                }
                for text, there in asked
            )
            at += timedelta(days=chance.randint(3, 15))
    return turns, questions


def _chatter(talk: Talk, chance: random.Random, pairs: int) -> Iterator[str]:
    for _ in range(pairs):
        for text in chance.choice(talk.chatter):
            yield re.sub("{}", lambda _: chance.choice(talk.words.split()), text)
