"""Words that carry no topic: what keywords and the core intent of a query leave out.

The lists are those of questions to a knowledge base in Chinese and English, longest alternative first where one begins
with another, because regular expressions take the first that fits.
"""

from typing import Final

from retrieval.tokenize import ENGLISH_STOP_WORDS

# Openings and endings of politeness. Patterns, matched at the start of a query, one after the other.
CHINESE_COURTESIES: Final = (
    r"您好|你好|请问一下|请问|请教一下|请教|麻烦问一下|麻烦问下|打扰一下|不好意思|劳驾|麻烦(?:您|你)",
    r"(?:我|我们)?(?:想|要|想要|希望|需要)(?:知道|了解|问|咨询|请教|查询|打听|搞清楚|弄清楚)(?:一下|一问|下)?",
    r"(?:您|你)?(?:能不能|可不可以|能否|可否|可以|能|请)?(?:帮我|帮忙|给我|为我|替我)?"
    r"(?:告诉我|介绍一下|介绍下|解释一下|解释下|说明一下|说明下|讲解一下|讲一下|说一下|说说|讲讲|谈谈"
    r"|查一下|查下|查查|找一下|找下|找找|看一下|看看)(?:一下)?",
    r"请(?:简述|简要说明|简要介绍|介绍|说明|解释|列举|列出|描述)(?:一下)?",
    r"谁知道|有谁知道|有人知道",
)
CHINESE_THANKS: Final = r"非常感谢|多谢|谢谢您|谢谢你|谢谢|拜托了?"
ENGLISH_COURTESIES: Final = (
    r"hi there|hi|hello|hey|excuse me|sorry|please|kindly|good (?:morning|afternoon|evening)",
    r"(?:could|can|would|will) you (?:please |kindly )?(?:tell me|explain(?: to me)?|show me|describe|let me know"
    r"|help me(?: to)?(?: find(?: out)?| understand| with)?)(?: about)?",
    r"(?:i would like|i'd like|i want|i need|i wish|i am trying|i'm trying) to (?:know|understand|learn|find out|find|ask|see)"
    r"(?: about)?",
    r"(?:i am|i'm) (?:wondering|looking for|curious about)|i wonder|do you know|does anyone know|any idea",
    r"tell me(?: about)?|let me know|give me",
)
ENGLISH_THANKS: Final = r"thank you(?: (?:very|so) much| in advance)?|thanks(?: a lot| in advance)?|please"

# Question words anywhere in a Chinese query; 哪 alone also begins names (哪吒), so only with what it asks for.
CHINESE_QUESTION_WORDS: Final = (
    r"是什么意思|指的是什么|是什么样的?|什么是|是什么(?!时候)|是指什么|是谁|谁是|是多少|有多少|有哪些|是哪些",
    r"是哪(?:里|儿|个|位|种|年|家|部|国)|在哪(?:里|儿|个|些)?(?=[？?。]?$)",
    r"为什么|为何|怎么样的?|怎么办|怎么|怎样的?|如何|多少|多久",
    r"什么样的|什么时候|什么|哪一?(?:里|儿|些|个|位|种|年|家|部(?!位)|款|类|项|本|条|首|座|次|支|所|届|国)|哪(?=[两二三四五六七八九十几])|哪里",
    r"可不可以|能不能|是不是|会不会|有没有|要不要|该不该|能否|是否|可否|谁",
)
# Particles that end a clause.
CHINESE_PARTICLES: Final = r"吗|呢|吧|么|啊|呀|嘛"
# At the start of an English question, where they cannot be relative pronouns.
ENGLISH_QUESTION_WORDS: Final = (
    r"(?:(?:in|on|at|by|for|from|of|to|with|under|during) )?(?:what|which|who|whom|whose|where|when|why|how)(?:'s|'re)?",
    r"(?: (?:many|much|long|often|old|far|come)\b)?",
    r"(?: (?:is|are|was|were|do|does|did|can|could|should|would|will|has|have|had)(?:n't)?\b)?(?: (?:there|i|we|you|one)\b)?",
    r"(?: to\b)?",
)
ENGLISH_QUESTION_OPENINGS: Final = (
    r"(?:is|are|was|were|do|does|did|can|could|should|would|will|has|have)(?:n't)?(?: (?:there|i|we|you|one|it))?"
)

# Words, cut by a segmenter, that tell nothing of a topic.
# fmt: off
CHINESE_STOP_WORDS: Final = frozenset({
    "什么", "怎么", "怎样", "怎么样", "怎么办", "如何", "为什么", "为何", "哪里", "哪儿", "哪些", "哪个", "哪位", "哪种", "哪年", "哪家",
    "多少", "多久", "是否", "能否", "可否", "可以", "能够", "可不可以", "能不能", "是不是", "有没有", "会不会", "没有", "不是", "不能",
    "不会", "应该", "应当", "需要", "必须", "请问", "请教", "知道", "告诉", "了解", "想要", "想知道", "一下", "谢谢", "您好", "你好",
    "我们", "你们", "他们", "她们", "它们", "自己", "大家", "这个", "那个", "这些", "那些", "这里", "那里", "这样", "那样", "这么", "那么",
    "这种", "那种", "一个", "一种", "一些", "一样", "有些", "任何", "各种", "其他", "其它", "其中", "其", "以及", "或者", "还是", "但是",
    "不过", "因为", "所以", "如果", "虽然", "尽管", "并且", "而且", "然而", "然后", "之后", "以后", "之前", "以前", "当时", "由于", "因此",
    "根据", "按照", "通过", "关于", "对于", "除了", "为了", "作为", "属于", "成为", "进行", "包括", "已经", "正在", "曾经", "现在", "目前",
    "就是", "只有", "只是", "只能", "也是", "都是", "还有", "还会", "非常", "比较", "更加", "之间", "之一", "时候", "情况", "意思",
    "不同", "之中", "并不", "仍然", "甚至", "例如", "比如", "等等", "以上", "以下", "左右", "同时", "此外", "另外", "于是", "得到",
})
# Single characters that tell nothing when a segmenter leaves them alone.
CHINESE_PARTICLES_ALONE: Final = frozenset("的地得了着过是在有和与或及也都就要会能可被把让给对从到为吗呢吧么啊呀嘛我你他她它们这那哪谁几")
ENGLISH_FUNCTION_WORDS: Final = ENGLISH_STOP_WORDS | {
    "about", "above", "after", "again", "against", "all", "also", "although", "am", "among", "any", "anyone", "because",
    "been", "before", "being", "below", "between", "both", "can", "can't", "cannot", "could", "did", "didn't", "do",
    "does", "doesn't", "doing", "don't", "down", "during", "each", "either", "else", "ever", "every", "few", "from",
    "further", "get", "give", "given", "had", "has", "hasn't", "have", "haven't", "having", "he", "hello", "help", "her",
    "here", "hers", "hey", "hi", "him", "his", "how", "however", "i", "i'd", "i'm", "i've", "it's", "its", "just", "know",
    "let", "like", "many", "may", "me", "might", "more", "most", "much", "must", "my", "need", "neither", "nor", "off",
    "often", "once", "one", "only", "other", "others", "our", "out", "over", "own", "per", "please", "same", "shall",
    "she", "should", "since", "so", "some", "someone", "something", "still", "tell", "than", "thank", "thanks", "them",
    "themselves", "those", "though", "through", "thus", "too", "under", "until", "up", "upon", "us", "used", "using",
    "very", "two", "three", "four", "five", "first", "second", "least", "less", "usually", "via", "want", "we", "well", "were", "what", "what's", "when", "where", "whether", "which", "while", "who",
    "who's", "whom", "whose", "why", "within", "without", "would", "yes", "yet", "you", "your", "yours",
}
# fmt: on
